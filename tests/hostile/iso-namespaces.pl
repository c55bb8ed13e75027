# New namespaces, in which it would be root, and existing ones.
my %kinds = (user => 0x10000000, mount => 0x20000, pid => 0x20000000, net => 0x40000000, uts => 0x4000000, ipc => 0x8000000, cgroup => 0x2000000);
for my $kind (sort keys %kinds) {
    must_refuse("unshare of $kind", [272, 97], $kinds{$kind});
    $! = 0;
    my $pid = call([56, 220], $kinds{$kind} | 17, 0, 0, 0, 0);
    POSIX::_exit(0) if $pid == 0;
    must_not("clone into a new $kind", $pid > 0);
}
for my $kind (qw(mnt net pid ipc uts cgroup user)) {
    must_not("the $kind namespace of process 1", open(my $f, '<', "/proc/1/ns/$kind"));
    open(my $own, '<', "/proc/self/ns/$kind") or next;
    must_refuse("setns to its own $kind", [308, 268], fileno($own), 0);
}
done();
