# Before each program in Perl: what was refused, and what was not. Perl is in every image of ours, and reaches system
# calls by their number.
use strict; use warnings; no warnings qw(exec portable); use POSIX ();
use POSIX qw(:errno_h :sys_wait_h :signal_h);
$| = 1;
$SIG{XFSZ} = 'IGNORE';
my $ARM = (POSIX::uname())[4] eq 'aarch64';
my @REFUSALS = (EPERM, EACCES, ENOSYS, EOPNOTSUPP, EROFS, EAFNOSUPPORT, EPROTONOSUPPORT, ESOCKTNOSUPPORT);
my (@escaped, $tried);

# A system call by its numbers on x86-64 and on 64-bit ARM (-1 where there is none).
# Answers are written into the arguments, so they are not copied.
sub call { my $numbers = shift; $! = 0; return syscall($numbers->[$ARM] // $numbers->[0], @_) }

# Must be refused for what it is: an error about its arguments says that somebody looked at them.
sub must_refuse {
    my ($what, $numbers, @args) = @_;
    return if ($numbers->[$ARM] // $numbers->[0]) < 0;
    $tried++;
    my $result = call($numbers, @args);
    push @escaped, "$what: " . ($result == -1 ? "$!" : "answered $result") if $result != -1 || !grep { $! == $_ } @REFUSALS;
}

# Must not be true.
sub must_not { my ($what, $is) = @_; $tried++; push @escaped, $what if $is }

sub can_write { my ($path, $text) = @_; open(my $f, '+<', $path) or return 0; return defined(syswrite($f, $text // "0\n")) }
sub can_read { my ($path) = @_; open(my $f, '<', $path) or return 0; return defined(sysread($f, my $b, 1)) }
sub text { my ($path) = @_; open(my $f, '<', $path) or return ''; local $/; return scalar(<$f>) // '' }

# The last word: everything held, or what got through.
sub done {
    print @escaped ? "escaped: " . join('; ', @escaped) . "\n" : "held: $tried attempts\n";
    exit(@escaped ? 1 : 0);
}
