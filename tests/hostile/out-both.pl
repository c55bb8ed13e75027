# Both streams in turn, in single bytes and in large pieces.
while (1) { syswrite(STDOUT, 'o'); syswrite(STDERR, 'e' x 70000); syswrite(STDOUT, 'o' x 70000); syswrite(STDERR, 'e') }
