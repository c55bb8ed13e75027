# Several processes write a little and wait for the disk each time.
for my $n (1 .. 8) {
    next if fork;
    open(my $f, '>', "/data/f$n") or POSIX::_exit(1);
    while (1) { syswrite($f, 'x' x 4096); call([74, 82], fileno($f)); sysseek($f, 0, 0) if tell($f) > 1 << 20 }
}
sleep 1 while 1;
