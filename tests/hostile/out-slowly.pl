# One byte at a time, without end.
while (1) { syswrite(STDOUT, '.'); select(undef, undef, undef, 0.001) }
