# Kernel buffers on behalf of the program: pipes without a reader.
my (@kept, $bytes);
while (pipe(my $r, my $w)) {
    fcntl($w, 4, 04000);
    fcntl($w, 1031, 1 << 20);
    while (my $count = syswrite($w, 'x' x 65536)) { $bytes += $count }
    push @kept, $r, $w;
}
must_not('more descriptors than it may have', @kept > 1024);
done();
