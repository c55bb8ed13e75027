# Endless names in shared memory, which has no limit of names: they count as memory.
my $name = 'x' x 240;
for my $n (1 .. 1 << 24) { open(my $f, '>', "/dev/shm/$n$name") or last }
$tried = 1;
done();
