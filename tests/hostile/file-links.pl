# Links to targets that the server must not follow.
chdir '/data';
symlink $_->[1], $_->[0] for (
    ['shadow', '/etc/shadow'], ['environ', '/proc/self/environ'], ['root', '/'], ['up', '../../..'], ['loop', 'loop'],
    ['fd', '/proc/self/fd/0'], ['socket', '/var/run/docker.sock'], ['long', 'x/' x 2000], ['lock', '../.lock']);
must_not('a hard link out', link('/etc/passwd', '/data/passwd'));
must_not('a hard link to the init', link('/sandbox-init', '/data/init'));
must_not('a rename of the mount', rename('/data', '/tmp/data'));
must_not('a link in place of the mount', unlink('/data') || rmdir('/data'));
done();
