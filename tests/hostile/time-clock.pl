# The machine's clock cannot be set.
must_refuse('clock_settime', [227, 112], 0, pack('qq', 1, 0));
must_refuse('settimeofday', [164, 170], pack('qq', 1, 0), 0);
must_refuse('adjtimex', [159, 171], pack('L', 0x8001) . "\0" x 256);
must_refuse('clock_adjtime', [305, 266], 0, "\0" x 256);
must_not('another zone for the kernel', can_write('/etc/localtime', 'x'));
done();
