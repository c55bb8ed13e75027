# Sixty children that grow at the same time: the kernel has to choose one of them sixty times, and never the parent. Where
# Node has started this, it chooses Node first, which is larger than a child is by then.
my @children;
for (1 .. 60) {
    my $child = fork // last;
    if (!$child) { my $held = ''; while (1) { $held .= 'x' x (1 << 20) } }
    push @children, $child;
}
for my $child (@children) {
    waitpid($child, 0);
    must_not("a child that ended with $?", ($? & 127) != SIGKILL && $? == 0);
}
done();
