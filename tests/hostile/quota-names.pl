# Endless links with the longest names: hardly any bytes, and more names than a conversation may have.
my $name = 'x' x 240;
for my $n (1 .. 1 << 24) { symlink('nowhere', "/data/$n$name") or last }
$tried = 1;
done();
