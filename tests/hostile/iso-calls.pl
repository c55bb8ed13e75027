# System calls without use and with past kernel vulnerabilities: each is refused before its arguments are read.
my %calls = (
    ptrace => [101, 117], process_vm_readv => [310, 270], process_vm_writev => [311, 271], kcmp => [312, 272],
    pidfd_getfd => [438], keyctl => [250, 219], add_key => [248, 217], request_key => [249, 218], bpf => [321, 280],
    perf_event_open => [298, 241], userfaultfd => [323, 282], io_uring_setup => [425], io_uring_enter => [426],
    io_uring_register => [427], io_setup => [206, 0], init_module => [175, 105], finit_module => [313, 273],
    delete_module => [176, 106], kexec_load => [246, 104], kexec_file_load => [320, 294], swapon => [167, 224],
    swapoff => [168, 225], syslog => [103, 116], iopl => [172, -1], ioperm => [173, -1], quotactl => [179, 60],
    quotactl_fd => [443], acct => [163, 89], vhangup => [153, 58], modify_ldt => [154, -1], splice => [275, 76],
    tee => [276, 77], vmsplice => [278, 75], memfd_secret => [447], seccomp => [317, 277],
    landlock_create_ruleset => [444], name_to_handle_at => [303, 264], open_by_handle_at => [304, 265],
    fanotify_init => [300, 262], remap_file_pages => [216, 234], readahead => [187, 213], sync => [162, 81],
    syncfs => [306, 267], move_pages => [279, 239], migrate_pages => [256, 238], mbind => [237, 235],
    set_mempolicy => [238, 237], process_madvise => [440], process_mrelease => [448], capset => [126, 91],
    clone3 => [435], statmount => [457], listmount => [458], uselib => [134, -1], sysfs => [139, -1],
    nfsservctl => [180, 42], lookup_dcookie => [212, 18], sethostname => [170, 161], setdomainname => [171, 162],
    sched_setattr => [314, 274], cachestat => [451],
);
must_refuse($_, $calls{$_}, -1, 0, 0, 0, 0) for sort keys %calls;
# prctl, PR_SET_SECCOMP: a filter takes kernel memory beyond the limit on memory. The kernel reads the lower half.
must_refuse("prctl: a filter, by $_", [157, 167], $_, 2, 0, 0, 0) for 22, (1 << 32) + 22;
# System call numbers of another architecture: the filter kills a process that uses them.
if (!$ARM) {
    my $pid = fork // die;
    if (!$pid) { POSIX::_exit(syscall(0x40000000 + 39) == -1 ? 1 : 0) }
    waitpid($pid, 0);
    must_not('a call by its x32 number', $? == 0);
}
done();
