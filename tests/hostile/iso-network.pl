# No address is reachable: not the cloud's metadata, not the engine, not the host.
use Socket;
for (['169.254.169.254', 80], ['172.17.0.1', 2375], ['172.17.0.1', 8080], ['10.0.0.1', 53], ['192.168.0.1', 80], ['8.8.8.8', 53], ['1.1.1.1', 443],
    ['127.0.0.1', 2375], ['127.0.0.1', 2376], ['127.0.0.1', 8080], ['127.0.0.1', 22], ['127.0.0.11', 53]) {
    my ($host, $port) = @$_;
    for my $type (SOCK_STREAM, SOCK_DGRAM) {
        socket(my $s, AF_INET, $type, 0) or next;
        fcntl($s, 4, 04000);
        my $reached = connect($s, pack_sockaddr_in($port, inet_aton($host)));
        if (!$reached && $! == EINPROGRESS) {
            my $set = '';
            vec($set, fileno($s), 1) = 1;
            select(undef, $set, undef, 2);
            $! = unpack 'i', getsockopt($s, SOL_SOCKET, SO_ERROR);
            $reached = $! == 0;
        }
        $reached = defined(send($s, 'x', 0)) && defined(recv($s, my $answer, 1, 0)) if $reached && $type == SOCK_DGRAM;
        must_not("$host:$port by type $type: " . ($reached ? 'reached' : "$!"), $reached);
    }
}
must_not('an interface besides lo', grep { /^\s*(\S+):/ && $1 ne 'lo' } split /\n/, text('/proc/net/dev'));
must_not('a route', (split /\n/, text('/proc/net/route')) > 1);
must_not('a name was resolved', defined gethostbyname('example.com'));
done();
