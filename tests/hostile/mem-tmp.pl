# /tmp has a limit on bytes and on names.
my $written = 0;
for my $n (0 .. 9) {
    open(my $f, '>', "/tmp/fill-$n") or last;
    while (defined(my $count = syswrite($f, 'x' x 65536))) { $written += $count; last if $written > 128 << 20 }
}
must_not("$written bytes in /tmp", $written > 64 << 20);
unlink glob('/tmp/fill-*');
my $names = 0;
for (1 .. 9000) { open(my $f, '>', "/tmp/name-$_") or last; $names++ }
must_not("$names names in /tmp", $names > 4096);
done();
