# Tries to get more than its CPU share: by priority, real-time scheduling, another cgroup.
must_not('a better priority', call([141, 140], 0, 0, -20) == 0);
must_not('less than it asks for', call([141, 140], 0, 0, 5) != 0);
must_refuse("scheduling policy $_", [144, 119], 0, $_, pack('i', 50)) for 1 .. 7, 1 << 30, 0x40000001;
must_not('the usual policy is refused', call([144, 119], 0, 0, pack('i', 0)) != 0);
must_refuse('real time by attributes', [314, 274], 0, pack('LLQlLQQQ', 48, 1, 0, 0, 50, 0, 0, 0), 0);
must_refuse('disk priority', [251, 30], 1, 0, 1 << 13);
must_not('spared when the machine is out of memory', can_write('/proc/self/oom_score_adj', "$_\n")) for -1, -1000;
done();
