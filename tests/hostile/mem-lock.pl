# Locked and secret memory.
must_not('locked pages', call([149, 228], my $page = 'x' x 65536, 65536) == 0);
must_refuse('mlockall', [151, 230], 3);
must_refuse('secret memory', [447], 0);
done();
