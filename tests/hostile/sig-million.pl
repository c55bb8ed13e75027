# A million signals to process 1, from four processes at once: it goes on and tells the program's own end.
my @senders;
for my $part (0 .. 3) {
    my $pid = fork();
    if ($pid == 0) {
        for (1 .. 3907) { kill $_, 1 for 1 .. 64 }
        exit 0;
    }
    push @senders, $pid;
}
waitpid $_, 0 for @senders;
my ($state) = text('/proc/1/stat') =~ /\) (\S)/;
must_not("process 1 is in the state $state", $state =~ /[TtZX]/);
done();
