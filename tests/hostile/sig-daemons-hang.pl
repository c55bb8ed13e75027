# Like sig-daemons, but the first process stays.
for (1 .. 40) {
    my $pid = fork // last;
    if (!$pid) { POSIX::setsid(); exit if fork; $SIG{$_} = 'IGNORE' for qw(TERM HUP INT QUIT); sleep 60 while 1 }
    waitpid($pid, 0);
}
sleep 60 while 1;
