# Address randomisation cannot be disabled, nor can segment tables be changed or page zero be mapped.
must_refuse('addresses that do not change', [135, 92], 0x0040000);
must_refuse('memory that can be run by being read', [135, 92], 0x0400000);
must_refuse('a table of segments', [154, -1], 1, "\0" x 16, 16);
must_not('page zero', call([9, 222], 0, 4096, 3, 0x32, -1, 0) == 0);
must_not('its own addresses are those of the next', do {
    my %seen; $seen{ (split /-/, qx{head -1 /proc/self/maps})[0] }++ for 1 .. 4; keys %seen < 2 });
done();
