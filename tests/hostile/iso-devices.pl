# The expected devices exist, and no others.
my %allowed = map { $_ => 1 } qw(null zero full random urandom tty console ptmx pts shm mqueue fd stdin stdout stderr core);
opendir(my $dir, '/dev') or die;
my @odd = grep { !/^\.\.?$/ && !$allowed{$_} } readdir $dir;
must_not("devices: @odd", @odd);
must_not("/dev/$_ was opened", can_read("/dev/$_")) for qw(mem kmem port kmsg sda vda nvme0 kvm fuse vhost-vsock loop-control net/tun mapper/control cpu/0/msr);
done();
