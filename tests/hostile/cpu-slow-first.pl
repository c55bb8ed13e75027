# Process 1 is given the lowest priority and one processor, which is then crowded; its end has to be told all the same.
call([141, 140], 0, 1, 19);
my $one = pack('Q', 1);
call([203, 122], 1, 8, $one);
call([203, 122], 0, 8, $one);
for (1 .. 24) { last if !fork }
1 while 1;
