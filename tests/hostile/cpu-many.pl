# Sixteen busy loops.
for (1 .. 15) { last if !fork }
1 while 1;
