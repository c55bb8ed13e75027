# A deleted folder takes nothing any more, by its handle, as a working directory or from a child.
my $UNNAMED = $ARM ? 020040002 : 020200002;
mkdir('/data/gone') && chdir('/data/gone') or die "$!";
opendir(my $handle, '.') or die "$!";
rmdir '/data/gone' or die "$!";
my ($file, $folder, $here, $old, $new) = qw(file folder . - linked);
for my $where (-100, fileno($handle)) {
    must_not('a file in a deleted folder', call([257, 56], $where, $file, 0101, 0600) >= 0);
    must_not('a folder in a deleted folder', call([258, 34], $where, $folder, 0700) >= 0);
    my $fd = call([257, 56], $where, $here, $UNNAMED, 0600);
    $old = "/proc/self/fd/$fd";
    must_not('a file without a name', $fd >= 0 && call([265, 37], -100, $old, $where, $new, 0x400) == 0);
}
done();
