# Closes every descriptor and exits.
POSIX::close($_) for 0 .. 1023;
POSIX::_exit(5);
