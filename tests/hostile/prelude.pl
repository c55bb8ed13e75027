# Precedes each program in Perl: counts attempts and records those that were not refused. Perl is in all of our images and
# can make any system call by its number.
use strict; use warnings; no warnings qw(exec portable); use POSIX ();
use POSIX qw(:errno_h :sys_wait_h :signal_h);
$| = 1;
$SIG{XFSZ} = 'IGNORE';
my $ARM = (POSIX::uname())[4] eq 'aarch64';
my @REFUSALS = (EPERM, EACCES, ENOSYS, EOPNOTSUPP, EROFS, EAFNOSUPPORT, EPROTONOSUPPORT, ESOCKTNOSUPPORT);
# Seconds after each file of those that fill the disk; a test sets it.
my $PACE = 0;
my (@escaped, $tried, $filled);

# A system call by its numbers on x86-64 and on 64-bit ARM (-1 where there is none).
# System calls write results into the arguments, so the arguments are not copied.
sub call { my $numbers = shift; $! = 0; return syscall($numbers->[$ARM] // $numbers->[0], @_) }

# The call itself must be refused: an error about its arguments means that the kernel has read them.
sub must_refuse {
    my ($what, $numbers, @args) = @_;
    return if ($numbers->[$ARM] // $numbers->[0]) < 0;
    $tried++;
    my $result = call($numbers, @args);
    push @escaped, "$what: " . ($result == -1 ? "$!" : "answered $result") if $result != -1 || !grep { $! == $_ } @REFUSALS;
}

# The condition must be false.
sub must_not { my ($what, $is) = @_; $tried++; push @escaped, $what if $is }

sub can_write { my ($path, $text) = @_; open(my $f, '+<', $path) or return 0; return defined(syswrite($f, $text // "0\n")) }
sub can_read { my ($path) = @_; open(my $f, '<', $path) or return 0; return defined(sysread($f, my $b, 1)) }
sub text { my ($path) = @_; open(my $f, '<', $path) or return ''; local $/; return scalar(<$f>) // '' }

# Called after so many MB of those that fill the disk. At a pace, prints how many there are.
sub written {
    $filled += shift;
    return if !$PACE;
    print "written: $filled\n";
    select undef, undef, undef, $PACE;
}

# Prints the result and exits.
sub done {
    print @escaped ? "escaped: " . join('; ', @escaped) . "\n" : "held: $tried attempts\n";
    exit(@escaped ? 1 : 0);
}
