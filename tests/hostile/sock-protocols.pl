# Every protocol of the internet families, socket pairs of every family, and the calls on sockets that can load a module
# of the kernel or code into it. Only TCP, UDP and local pairs can be made; the filter itself has to refuse all others.
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
# Filters, which the kernel compiles into memory that all sandboxes share, protocols above TCP, and IPsec in UDP.
my $stream = call([41, 198], 2, 1, 0);
my $code = pack('SCCL', 6, 0, 0, 0xffffffff);
my $filter = pack('Sx6P', 1, $code);
for ([1, 26], [1, 50], [1, 51], [1, 52], [6, 31], [17, 100]) {
    my ($level, $option) = @$_;
    my $what = "option $option of level $level";
    must_filter($what, [54, 208], $stream, $level, $option, $filter, 16);
    must_filter("$what, with more bits", [54, 208], $stream, @$_, $filter, 16)
        for [$level | 1 << 32, $option], [$level, $option | 1 << 32];
}
my $one = pack('i', 1);
for ([0, 1], [1, 2], [1, 9], [1, 15], [6, 1], [6, 30], [17, 103], [41, 26]) {
    my $refused = call([54, 208], $stream, @$_, $one, 4) == -1 && $! == EPERM;
    must_not("option $_->[1] of level $_->[0] is refused", $refused);
}
done();
