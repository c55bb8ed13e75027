# A folder with 1.2 GB is moved behind the walk that measures it: as soon as either place is opened, it goes to the other.
sub fill { my $f = shift; for (1 .. 30) { syswrite($f, 'x' x (1 << 20)) or return 0 } return 1 }
mkdir "/data/$_" for qw(a b a/full);
my $watch = call([253, -1]);
$watch = call([294, 26], 0) if $watch < 0;
my ($one, $two) = ('/data/a', '/data/b');
my %other = (call([254, 27], $watch, $one, 0x20) => 'b', call([254, 27], $watch, $two, 0x20) => 'a');
my $at = 'a';
my $move = sub { my $to = shift; rename("/data/$at/full", "/data/$to/full") and $at = $to if $to ne $at };
if (!fork) {
    open(my $events, '<&=', $watch) or die "$!";
    while (sysread($events, my $buffer, 4096)) { $move->($other{unpack('l', $buffer)} // $at) }
    POSIX::_exit(0);
}
for my $n (1 .. 40) {
    for my $place (qw(a b)) {
        open(my $f, '>', "/data/$place/full/$n") or next;
        fill($f);
        written(30);
        last;
    }
    select undef, undef, undef, 0.02;
}
$tried = 1;
done();
