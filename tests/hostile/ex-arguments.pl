# Excessive arguments and environment variables.
my $long = 'x' x (1 << 17);
must_not('one argument of 128 KiB', system('/bin/true', $long) == 0);
must_not('arguments of 4 MiB', system('/bin/true', ('x' x 100000) x 42) == 0);
$ENV{"V$_"} = 'x' x 100000 for 1 .. 42;
must_not('variables of 4 MiB', system('/bin/true') == 0);
done();
