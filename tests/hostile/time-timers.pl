# A timer that fires continuously, and as many others as possible.
POSIX::sigaction(SIGALRM, POSIX::SigAction->new(sub { }));
call([38, 103], 0, pack('q4', 0, 1, 0, 1), 0);
my $made = 0;
for (1 .. 5000) { my $id = pack('l', 0); last if call([222, 107], 1, 0, $id) != 0; $made++ }
print "more timers than signals may wait: $made\n" if $made > 256;
1 while 1;
