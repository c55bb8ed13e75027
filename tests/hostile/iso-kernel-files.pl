# The kernel's own files: those that change the machine, and those that reveal it.
my @writes = qw(/proc/sysrq-trigger /proc/sys/kernel/core_pattern /proc/sys/kernel/modprobe /proc/sys/kernel/hostname /proc/sys/kernel/panic
    /proc/sys/vm/drop_caches /proc/sys/vm/overcommit_memory /proc/sys/net/ipv4/ip_forward /proc/sys/fs/binfmt_misc/register /proc/sys/kernel/ns_last_pid
    /sys/kernel/uevent_helper /sys/kernel/mm/transparent_hugepage/enabled /sys/power/state /sys/class/block /sys/module/kernel/parameters/panic
    /proc/irq/default_smp_affinity /proc/bus/pci /proc/mtrr /proc/fs/ext4);
must_not("$_ was written", can_write($_)) for @writes;
must_not("$_ was read", can_read($_)) for qw(/proc/kcore /proc/kmsg /proc/kpageflags /proc/vmallocinfo /proc/slabinfo /dev/kmsg /sys/kernel/debug/sched/debug);
must_not("$_ tells something", length text($_)) for qw(/proc/kallsyms /proc/keys /proc/timer_list /proc/sched_debug /proc/interrupts /proc/cmdline /proc/latency_stats);
must_not('another process shows', grep { m{/(\d+)$} && $1 != 1 && $1 != $$ && $1 != getppid && text("$_/status") =~ /^Uid:\s+(?!1000\b)/m } glob '/proc/[0-9]*');
done();
