# Creates inotify instances, epoll, event and timer descriptors up to the limit of open files.
my ($watches, $polls, $events, $timers) = (0) x 4;
$watches++ while $watches < 2000 && call([294, 26], 0) >= 0;
POSIX::close($_) for 3 .. 1023;
$polls++ while $polls < 2000 && call([291, 20], 0) >= 0;
POSIX::close($_) for 3 .. 1023;
$events++ while $events < 2000 && call([290, 19], 0, 0) >= 0;
POSIX::close($_) for 3 .. 1023;
$timers++ while $timers < 2000 && call([283, 85], 1, 0) >= 0;
POSIX::close($_) for 3 .. 1023;
must_not("$_ of a kind", $_ > 1024) for $watches, $polls, $events, $timers;
done();
