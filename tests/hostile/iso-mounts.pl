# Tries to change its view of the file system.
must_refuse('mount', [165, 40], "none\0", "/tmp\0", "tmpfs\0", 0, 0);
must_refuse('mount again, writable', [165, 40], "none\0", "/\0", 0, 32, 0);
must_refuse('umount', [166, 39], "/proc/sys\0", 2);
must_refuse('pivot_root', [155, 41], "/tmp\0", "/tmp\0");
must_refuse('chroot', [161, 51], "/tmp\0");
must_refuse('fsopen', [430], "tmpfs\0", 0);
must_refuse('open_tree', [428], -100, "/\0", 1);
must_refuse('move_mount', [429], -100, "/tmp\0", -100, "/tmp\0", 0);
must_refuse('mount_setattr', [442], -100, "/\0", 0, "\0" x 32, 32);
must_refuse('fspick', [433], -100, "/\0", 0);
done();
