# Tries every path to the pipe from process 1 to the server.
my $exit = "\x84\0\0\0\x0c{\"status\":0}";
for my $path (map { ("/proc/1/fd/$_", "/proc/1/task/1/fd/$_") } 0 .. 15) {
    must_not("$path was opened", open(my $f, '>', $path));
}
for my $fd (3 .. 255) {
    open(my $f, '>&=', $fd) or next;
    must_not("the descriptor $fd takes bytes", defined syswrite($f, $exit));
}
must_not("/dev/$_ was written", can_write("/dev/$_", $exit)) for qw(console tty tty1 pts/0 kmsg);
opendir(my $dir, '/proc/self/fd') or die;
my @left = grep { /^\d+$/ && $_ > 2 && (readlink("/proc/self/fd/$_") // '') =~ /^(socket|pipe|anon_inode)/ } readdir $dir;
must_not("descriptors were left open: @left", @left > 0);
done();
