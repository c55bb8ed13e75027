# Floods process 1 with SIGCHLD.
for (1 .. 6) { last if !fork }
while (1) { kill 'CHLD', 1 }
