# Open files without a name keep their space.
my @kept;
for (1 .. 8) {
    open(my $f, '+>', "/data/gone") or last;
    unlink '/data/gone';
    for (1 .. 8) { syswrite($f, 'x' x (1 << 20)) or last }
    push @kept, $f;
}
sleep 1 while 1;
