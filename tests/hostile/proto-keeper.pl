# Where no process shares the program's memory: tries to patch those that there are. Node, which started this one, is a
# part of the program.
opendir(my $all, '/proc') or die;
for my $pid (grep { /^\d+$/ && $_ != $$ && ($_ == 1 || $_ != getppid) } readdir $all) {
    must_not("the memory of $pid was opened", open(my $mem, '+<', "/proc/$pid/mem"));
    must_refuse("ptrace of $pid", [101, 117], 16, $pid, 0, 0);
    must_refuse("writing the memory of $pid", [311, 271], $pid, 0, 0, 0, 0, 0);
}
done();
