# A robust futex list and a thread-id address that are invalid; the kernel uses both on exit.
call([273, 99], pack('QQQ', 0xdeadbeef000, 0x7fffffffffff, 0x41414141), 24);
call([218, 96], 0x41414141);
my $word = pack('L', 0);
call([202, 98], $word, 1, 0x7fffffff, 0, 0, 0);
$tried = 1;
done();
