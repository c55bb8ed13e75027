# Exited processes that are never reaped.
while (1) { my $pid = fork; exit if defined $pid && !$pid; select(undef, undef, undef, 0.01) unless defined $pid }
