# Tries to get more than its CPU share: by priority, real-time scheduling, cores for itself, another cgroup.
must_not('a better priority', call([141, 140], 0, 0, -20) == 0);
must_not('less than it asks for', call([141, 140], 0, 0, 5) != 0);
must_refuse("scheduling policy $_", [144, 119], 0, $_, pack('i', 50)) for 1 .. 7, 1 << 30, 0x40000001;
must_not('the usual policy is refused', call([144, 119], 0, 0, pack('i', 0)) != 0);
must_refuse('real time by attributes', [314, 274], 0, pack('LLQlLQQQ', 48, 1, 0, 0, 50, 0, 0, 0), 0);
for my $option (62, 62 | 1 << 32) {
    must_refuse("cores that no other may share: $_", [157, 167], $option, $_, 0, 0, 0) for 0 .. 3;
}
my $name = "perl\0";
must_not('a name is refused', call([157, 167], 15, $name, 0, 0, 0) != 0);
must_not('a name of memory is refused', call([157, 167], 0x53564d41, 0, 0, 0, 0) == -1 && $! == EPERM);
must_refuse('disk priority', [251, 30], 1, 0, 1 << 13);
must_not('spared when the machine is out of memory', can_write('/proc/self/oom_score_adj', "$_\n")) for -1, -1000;
done();
