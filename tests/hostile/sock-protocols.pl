# Every protocol of the internet families, socket pairs of every family, and the calls on sockets that can load a module
# of the kernel. Only TCP, UDP and local pairs can be made; the filter itself has to refuse all others.
sub must_filter {
    my ($what, @call) = @_;
    my $result = call(@call);
    must_not("$what: answered $result, $!", $result != -1 || $! != EPERM);
}
for my $family (2, 10) {
    for my $type (0 .. 15) {
        for my $protocol (0 .. 262, 0xffffffff) {
            next if $type == 1 && ($protocol == 0 || $protocol == 6);
            next if $type == 2 && ($protocol == 0 || $protocol == 17);
            must_filter("family $family, type $type, protocol $protocol", [41, 198], $family, $type | $_, $protocol)
                for 0, 02004000;
        }
    }
    for ([1, 0], [1, 6], [2, 0], [2, 17]) {
        my $result = call([41, 198], $family, $_->[0] | 02004000, $_->[1]);
        must_not("family $family: protocol $_->[1] is refused", $result == -1 && $! == EPERM);
    }
    # The kernel ignores the upper half of an argument.
    must_filter("family $family, with more bits", [41, 198], $family | 1 << 32, 1, 132);
    must_filter("protocol 132, with more bits", [41, 198], $family, 1, 132 | 1 << 32);
}
my $pair = "\0" x 8;
must_filter("a pair of family $_", [53, 199], $_, 1, 0, $pair) for 0, 2 .. 45;
must_not('a local pair is refused', call([53, 199], 1, 1 | 02000000, 0, $pair) != 0);
my $socket = call([41, 198], 2, 2, 0);
my $request = pack('a16x48', 'lo');
# Bridges, VLANs, tunnels, drivers' own calls, ethtool, MII.
must_filter(sprintf('ioctl %#x on a socket', $_), [16, 29], $socket, $_, $request) for 0x8940 .. 0x89ff;
must_not('the index of an interface is refused', call([16, 29], $socket, 0x8933, $request) == -1 && $! == EPERM);
done();
