# Files that have a name for a moment only, in turn: a walk finds few of them. All have one at the end.
sub fill { my $f = shift; for (1 .. 30) { syswrite($f, 'x' x (1 << 20)) or return 0 } return 1 }
my @files = map { "/data/f$_" } 1 .. 40;
mkdir '/data/kept';
for (@files) {
    open(my $f, '>', $_) or die "$!";
    fill($f) or die "$!";
    rename $_, '/data/kept/last';
    # Another name in a folder that is read before or after this one.
    for my $turn (1 .. 50) {
        link '/data/kept/last', "/data/z$turn";
        unlink "/data/z$turn";
    }
    rename '/data/kept/last', $_;
    written(30);
}
$tried = 1;
done();
