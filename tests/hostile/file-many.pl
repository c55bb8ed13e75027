# Creates as many empty files as possible.
mkdir '/data/many';
for my $n (1 .. 1 << 30) { open(my $f, '>', "/data/many/$n") or last }
$tried = 1;
done();
