# Files without permissions, and with another owner.
mkdir '/data/closed'; open(my $f, '>', '/data/closed/inside'); chmod 0000, '/data/closed';
open(my $g, '>', '/data/as-me'); chmod 06755, '/data/as-me';
must_not('a file of root', chown(0, 0, '/data/as-me'));
must_refuse('a capability on a file', [188, 5], "/data/as-me\0", "security.capability\0", pack('LLLLL', 0x02000001, 0xffffffff, 0, 0, 0), 20, 0);
must_refuse('an attribute', [190, 7], fileno($g), "trusted.overlay.opaque\0", "y\0", 1, 0);
chmod 0000, '/data';
done();
