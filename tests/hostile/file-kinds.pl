# Objects that are not plain files.
use Socket;
POSIX::mkfifo('/data/fifo', 0666);
socket(my $s, AF_UNIX, SOCK_STREAM, 0); bind($s, pack_sockaddr_un('/data/socket')); listen($s, 1);
my $node = [133, -1];
for (['null', 020666, 0x103], ['mem', 020666, 0x101], ['whiteout', 020666, 0], ['disk', 060666, 0x800], ['disk', 060666, 0xfe00]) {
    must_refuse("the device $_->[0]", $node, "/data/$_->[0]\0", $_->[1], $_->[2]);
    must_refuse("the device $_->[0] by mknodat", [259, 33], -100, "/data/$_->[0]\0", $_->[1], $_->[2]);
}
done();
