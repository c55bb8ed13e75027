# Process 1 has the same user, and is still protected.
for my $of (1, getppid) {
    for my $file (qw(mem environ maps auxv io stack syscall personality pagemap smaps timerslack_ns)) {
        must_not("/proc/$of/$file was read", can_read("/proc/$of/$file")) if $of == 1 || $file eq 'mem';
    }
}
must_not("/proc/1/$_ was followed", defined readlink("/proc/1/$_")) for qw(root cwd exe);
must_not('/proc/1/fd was listed', opendir(my $d, '/proc/1/fd'));
must_not("/proc/1/$_ was written", can_write("/proc/1/$_")) for qw(mem oom_score_adj coredump_filter clear_refs comm timerslack_ns setgroups uid_map);
must_not('limits of process 1 were changed', call([302, 261], 1, 7, pack('QQ', 1, 1), 0) == 0);
must_not("the last signal of process 1's processor limit", call([302, 261], 1, 0, pack('QQ', 1, 1), 0) == 0);
must_refuse("the priority of $_->[0]", [141, 140], $_->[1], $_->[2], 19) for ['process 1', 0, 1], ['its group', 1, 0], ['its user', 2, 0], ['its user', 2, 1000];
must_refuse('ptrace of process 1', [101, 117], 0x4206, 1, 0, 0);
must_refuse('memory of process 1', [310, 270], 1, 0, 0, 0, 0, 0);
must_refuse('a descriptor of process 1', [438], call([434], 1, 0), 0, 0);
done();
