# Tries to raise its limits.
for my $limit (0 .. 15) {
    my $old = "\0" x 16;
    call([302, 261], 0, $limit, 0, $old);
    my ($soft, $hard) = unpack 'QQ', $old;
    next if $hard == ~0;
    must_not("limit $limit was raised", call([302, 261], 0, $limit, pack('QQ', $hard + 1, $hard + 1), 0) == 0);
}
must_not('a longer wait for signals', call([302, 261], 0, 11, pack('QQ', 1 << 20, 1 << 20), 0) == 0);
done();
