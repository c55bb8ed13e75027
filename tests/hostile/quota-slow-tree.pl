# A tree that takes long to walk, so that the walks are rare, and then much at once.
sub fill { my $f = shift; for (1 .. 30) { syswrite($f, 'x' x (1 << 20)) or return 0 } return 1 }
for my $d (1 .. 200) {
    mkdir "/data/$d";
    for my $n (1 .. 99) { open(my $f, '>', "/data/$d/$n") or die "$!" }
}
for my $n (1 .. 200) {
    open(my $f, '>', "/data/big$n") or die "$!";
    fill($f);
    written(30);
}
$tried = 1;
done();
