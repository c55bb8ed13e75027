# Anonymous files in memory.
my (@kept, $name) = ();
$name = "x\0";
while (1) {
    my $fd = call([319, 279], $name, 0);
    die "memfd_create: $!" if $fd < 0;
    open(my $f, '+<&=', $fd) or die;
    for (1 .. 16) { defined(syswrite($f, 'x' x (1 << 20))) or die "$!" }
    push @kept, $f;
}
