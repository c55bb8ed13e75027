# Write leases on many files: who opens them waits, or is refused.
$SIG{IO} = 'IGNORE';
my @held;
for my $n (1 .. 200) {
    open(my $f, '+>', "/data/leased$n") or last;
    print $f "x\n";
    fcntl($f, 1024, 1);
    push @held, $f;
}
$tried = @held;
done();
