# Tries to gain root, a group or a capability, by a call or by a file.
my ($pairs) = [
    ['setuid', [105, 146], 0], ['setgid', [106, 144], 0], ['setreuid', [113, 145], 0, 0], ['setresuid', [117, 147], 0, 0, 0],
    ['setresgid', [119, 149], 0, 0, 0], ['setgroups', [116, 159], 1, pack('L', 0)],
];
must_not('root', $> == 0 || $) =~ /\b0\b/);
must_refuse(@$_) for @$pairs;
must_refuse('capset', [126, 91], pack('LL', 0x20080522, 0), "\xff" x 24);
must_not('an ambient capability', call([157, 167], 47, 2, 21, 0, 0) == 0);
must_not('new privileges', call([157, 167], 39, 0, 0, 0, 0) == 0);
my %status = map { /^(\w+):\s+(.*)$/ } split /\n/, text('/proc/self/status');
must_not("$_ is $status{$_}", hex $status{$_}) for qw(CapInh CapPrm CapEff CapBnd CapAmb);
must_not('no filter', $status{Seccomp} != 2);
must_not("the groups are $status{Groups}", $status{Groups} =~ /\b(?!$>\b)\d/);
for my $program (grep { -u $_ } glob('/usr/bin/* /usr/sbin/* /bin/*')) {
    next if -d $program;
    my $uid = qx{$program --version 2>/dev/null >/dev/null; id -u};
    must_not("root by $program", $uid == 0);
}
must_not('root by su', qx{su -c 'id -u' </dev/null 2>/dev/null} eq "0\n");
must_not('root by mount', system('mount -t tmpfs none /tmp 2>/dev/null') == 0);
system('cp /bin/sh /data/sh; chmod 4755 /data/sh');
must_not('another user by its own file', qx{/data/sh -p -c 'id -u' 2>/dev/null} !~ /^($>)?$/);
unlink '/data/sh';
done();
