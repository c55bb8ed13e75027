# Leaves children behind that flood process 1 with signals while it collects them and tells the program's end.
for (1 .. 8) {
    if (fork() == 0) {
        while (1) { kill $_, 1 for 1 .. 64 }
    }
}
select undef, undef, undef, 0.2;
exit 7;
