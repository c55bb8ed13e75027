# No foreign socket is reachable: not the engine's, not one in the file system, not an abstract one.
must_not("$_ is there", -e $_) for map { ("/var/run/$_", "/run/$_") } qw(docker.sock containerd/containerd.sock podman/podman.sock systemd/private dbus/system_bus_socket);
my @found;
my @folders = grep { -d } '/run', '/var', '/tmp', '/dev', '/data', '/etc', '/opt';
while (defined(my $folder = shift @folders)) {
    opendir(my $dir, $folder) or next;
    for my $name (grep { !/^\.\.?$/ } readdir $dir) { my $path = "$folder/$name"; push @found, $path if -S $path; push @folders, $path if -d $path && !-l $path }
}
must_not("sockets: @found", @found);
my @others = grep { /@/ } split /\n/, text('/proc/net/unix');
must_not("nameless sockets of others: @others", @others);
done();
