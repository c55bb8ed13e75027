# Only /data and /tmp are writable.
for my $folder ('/', '/etc', '/usr/bin', '/usr/local/lib', '/opt/runner', '/var', '/run', '/home', '/dev', '/sys', '/proc', '/root', '/lib', '/var/tmp') {
    must_not("a file in $folder", open(my $f, '>', "$folder/planted"));
}
must_not("$_ was opened to be written", open(my $f, '+<', $_)) for '/sandbox-init', '/etc/passwd', '/etc/hosts', '/etc/resolv.conf', '/etc/hostname', '/bin/sh';
must_not("$_ was read", can_read($_)) for '/sandbox-init', '/etc/shadow', '/root/.bashrc';
must_not('a programme in /tmp that starts', do {
    open(my $f, '>', '/tmp/program'); print {$f} "#!/bin/sh\nexit 0\n"; close $f; chmod 0755, '/tmp/program';
    system('/tmp/program') == 0 });
done();
