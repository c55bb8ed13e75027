# Waits for events that never come: itself, a lock, a FIFO.
POSIX::mkfifo('/data/never', 0600);
if (!fork) { open(my $f, '<', '/data/never'); exit }
use Fcntl ':flock';
open(my $lock, '>', '/data/lock'); flock($lock, LOCK_EX);
if (!fork) { open(my $again, '>', '/data/lock'); flock($again, LOCK_EX); exit }
wait; wait;
