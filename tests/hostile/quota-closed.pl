# Folders that are closed to all users, each in another way, with 1.2 GB in them.
sub fill { my $f = shift; for (1 .. 30) { syswrite($f, 'x' x (1 << 20)) or return 0 } return 1 }
for my $mode (0000, 0100, 0200, 0300, 0400, 0600) {
    my $folder = sprintf '/data/%o', $mode;
    mkdir $folder or die "$!";
    for my $n (1 .. 7) {
        open(my $f, '>', "$folder/$n") or die "$!";
        fill($f) or die "$!";
        written(30);
    }
    chmod $mode, $folder;
}
$tried = 1;
done();
