# Opens as many files as possible, in as many processes as possible.
my @kept;
while (open(my $f, '<', '/dev/null')) { push @kept, $f; last if @kept > 5000 }
must_not(scalar(@kept) . ' open files', @kept > 1024);
done();
