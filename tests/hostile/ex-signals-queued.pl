# Queues blocked signals without end.
my $set = POSIX::SigSet->new(34 .. 64);
POSIX::sigprocmask(SIG_BLOCK, $set);
my $queued = 0;
my $info = pack('lllx4llQ', 34, 0, -1, $$, 1000, 0) . "\0" x 96;
for (1 .. 5000) { last if call([129, 138], $$, 34, $info) != 0; $queued++ }
must_not("$queued signals wait", $queued > 256);
done();
