# Gives process 1 the lowest priority and one busy processor; the end of the program must still be reported in time.
call([141, 140], 0, 1, 19);
my $one = pack('Q', 1);
call([203, 122], 1, 8, $one);
call([203, 122], 0, 8, $one);
for (1 .. 24) { last if !fork }
1 while 1;
