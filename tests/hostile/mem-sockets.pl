# Kernel buffers: socket pairs without a reader.
use Socket;
my @kept;
while (socketpair(my $a, my $b, AF_UNIX, SOCK_STREAM, 0)) {
    for ($a, $b) {
        setsockopt($_, SOL_SOCKET, SO_SNDBUF, 1 << 24);
        fcntl($_, 4, 04000);
        while (syswrite($_, 'x' x 65536)) { }
    }
    push @kept, $a, $b;
}
must_not('more descriptors than it may have', @kept > 1024);
done();
