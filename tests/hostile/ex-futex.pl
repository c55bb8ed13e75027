# A list of locks that leads to nowhere, and a thread id to be cleared at a wild address; the kernel walks both as it ends.
call([273, 99], pack('QQQ', 0xdeadbeef000, 0x7fffffffffff, 0x41414141), 24);
call([218, 96], 0x41414141);
my $word = pack('L', 0);
call([202, 98], $word, 1, 0x7fffffff, 0, 0, 0);
$tried = 1;
done();
