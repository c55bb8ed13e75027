# Fifty daemons that ignore signals and keep the output open.
for (1 .. 50) {
    my $pid = fork // last;
    if (!$pid) { POSIX::setsid(); exit if fork; $SIG{$_} = 'IGNORE' for qw(TERM HUP INT QUIT USR1 USR2 PIPE); sleep 60 while 1 }
    waitpid($pid, 0);
}
exit 7;
