# Every descriptor there is; and then it ends.
POSIX::close($_) for 0 .. 1023;
POSIX::_exit(5);
