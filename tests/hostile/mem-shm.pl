# Shared memory, by its folder and by its calls.
my $written = 0;
open(my $f, '>', '/dev/shm/fill') or die;
while (defined(my $count = syswrite($f, 'x' x 65536))) { $written += $count; last if $written > 128 << 20 }
must_not("$written bytes in /dev/shm", $written > 16 << 20);
must_refuse('shmget', [29, 194], 0, 1 << 20, 01777);
must_refuse('semget', [64, 190], 0, 1, 01777);
must_refuse('msgget', [68, 186], 0, 01777);
must_refuse('mq_open', [240, 180], "queue\0", 0102, 0600, 0);
done();
