# Calls on files that change flags, project ids, versions, extents, encryption or verity, or that reach the file system
# or the disk below: by name, in both sizes, and every number of their classes.
my $name = "/data/ioctl-$$";
open(my $file, '+>', $name) or die; print $file 'x' x 8192; $file->flush; opendir(my $folder, '/data') or die;
my ($on_file, $on_folder) = (fileno($file), POSIX::open('/data', 0));
sub must_filter {
    my ($what, $request) = @_;
    for my $on ($on_file, $on_folder) {
        my $buffer = "\0" x 4096;
        my $result = call([16, 29], $on, $request, $buffer);
        must_not("$what: answered $result, $!", $result != -1 || $! != EPERM && $! != EOPNOTSUPP);
    }
}
my %calls = (
    FS_IOC_GETFLAGS => 0x80086601, FS_IOC32_GETFLAGS => 0x80046601, FS_IOC_SETFLAGS => 0x40086602,
    FS_IOC32_SETFLAGS => 0x40046602, FS_IOC_SETVERSION => 0x40087602, FS_IOC32_SETVERSION => 0x40047602,
    FS_IOC_FSGETXATTR => 0x801c581f, FS_IOC_FSSETXATTR => 0x401c5820, FS_IOC_FIEMAP => 0xc020660b,
    FIBMAP => 1, FIGETBSZ => 2, FICLONE => 0x40049409, FICLONERANGE => 0x4020940d, FIDEDUPERANGE => 0xc0189436,
    FIFREEZE => 0xc0045877, FITHAW => 0xc0045878, FITRIM => 0xc0185879, FS_IOC_SETFSLABEL => 0x41009432,
    FS_IOC_SET_ENCRYPTION_POLICY => 0x800c6613, FS_IOC_GET_ENCRYPTION_PWSALT => 0x40106614,
    FS_IOC_ADD_ENCRYPTION_KEY => 0xc0506617, FS_IOC_REMOVE_ENCRYPTION_KEY => 0xc0406618,
    FS_IOC_ENABLE_VERITY => 0x40806685, FS_IOC_MEASURE_VERITY => 0xc0046686,
    FS_IOC_RESVSP => 0x40305828, FS_IOC_ZERO_RANGE => 0x40305839, EXT4_IOC_MOVE_EXT => 0xc028660f,
    EXT4_IOC_RESIZE_FS => 0x40086610, EXT4_IOC_SWAP_BOOT => 0x6611, EXT4_IOC_ALLOC_DA_BLKS => 0x660c,
    EXT4_IOC_MIGRATE => 0x6609, EXT4_IOC_SHUTDOWN => 0x8004587d, BTRFS_IOC_SUBVOL_CREATE => 0x5000940e,
    BLKDISCARD => 0x1277, BLKGETSIZE64 => 0x80081272, LOOP_SET_FD => 0x4c00, SG_IO => 0x2285,
);
must_filter($_, $calls{$_}) for sort keys %calls;
# The kernel ignores the upper half of the request.
must_filter('FS_IOC_SETFLAGS with more bits', 0x40086602 | 1 << 32);
for my $class (0x00, 0x12, 0x22, 0x4c, 0x58, 0x66, 0x76, 0x94, 0xcf, 0xf5) {
    for my $number (0 .. 255) {
        must_filter(sprintf('ioctl %#x', $_ | $class << 8 | $number), $_ | $class << 8 | $number)
            for 0, 0x40040000, 0x80080000, 0xc0200000;
    }
}
# What each descriptor has stays: close on exec, bytes to read.
must_not('FIOCLEX is refused', call([16, 29], $on_file, 0x5451, 0) == -1);
must_not('FIONREAD is refused', call([16, 29], $on_file, 0x541b, my $count = "\0" x 8) == -1);
unlink $name;
done();
