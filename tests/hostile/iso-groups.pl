# Tries to change its own limits in the cgroup files.
my @folders = ('/sys/fs/cgroup', glob('/sys/fs/cgroup/*'));
for my $folder (grep { -d } @folders) {
    must_not("$folder/$_ was written", can_write("$folder/$_", "1\n"))
        for qw(cgroup.procs tasks release_agent notify_on_release memory.limit_in_bytes memory.max memory.oom_control memory.swappiness pids.max cpu.cfs_quota_us cpu.max cgroup.kill cgroup.freeze freezer.state devices.allow);
    must_not("a group below $folder", mkdir("$folder/own"));
}
done();
