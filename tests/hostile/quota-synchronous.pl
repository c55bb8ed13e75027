# A large tree in which each change waits for the disk, where a program may ask for that.
for my $d (1 .. 40) {
    mkdir "/data/$d" or die "$!";
    for my $n (1 .. 100) { open(my $f, '>', "/data/$d/$n") or die "$!" }
    opendir(my $folder, "/data/$d") or die "$!";
    my $flags = "\0" x 8;
    call([16, 29], fileno($folder), 0x80086601, $flags);
    $flags = pack('q', unpack('q', $flags) | 0x10008);
    call([16, 29], fileno($folder), 0x40086602, $flags);
}
$tried = 40;
done();
