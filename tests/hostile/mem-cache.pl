# Page cache counts and is reclaimed: twice the memory, written and read.
for my $n (0 .. 3) {
    open(my $f, '+>', '/data/cache') or die "$!";
    for (1 .. 32) { defined(syswrite($f, 'x' x (1 << 20))) or die "$!" }
    seek($f, 0, 0);
    while (sysread($f, my $piece, 1 << 20)) { }
    unlink '/data/cache';
}
$tried = 1;
done();
