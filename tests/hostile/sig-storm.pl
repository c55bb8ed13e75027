# Process 1 is told, as fast as it goes, that a child has ended.
for (1 .. 6) { last if !fork }
while (1) { kill 'CHLD', 1 }
