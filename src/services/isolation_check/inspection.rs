//! Compares what a program saw of itself with what the engine says it enforces. Pure. The report is untrusted text from
//! a sandbox; an engine that does not isolate would have to forge every line of it.

use crate::ports::engine::{Expectation, Fact, Severity};

/// Expectations that do not hold, and warnings: a sentence each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Findings {
    pub violations: Vec<String>,
    pub notes: Vec<String>,
}

/// Reads a report of [`super::programs`].
pub(super) fn inspect(report: &str, expectations: Vec<Expectation>) -> Findings {
    let mut findings = Findings::default();
    for Expectation { fact, otherwise, severity, unobserved } in expectations {
        match (observe(report, fact), unobserved) {
            (Some(true), _) => {}
            (None, Some(note)) => findings.notes.push(note),
            _ if severity == Severity::Required => findings.violations.push(otherwise),
            _ => findings.notes.push(otherwise),
        }
    }
    findings
}

/// Whether a fact holds; `None` when the report says nothing about it.
fn observe(report: &str, fact: Fact) -> Option<bool> {
    let status = |name| field(part(report, "/proc/self/status"), name);
    let is_empty =
        |name| Some(status(name)?).filter(|mask| !mask.is_empty()).map(|mask| mask.bytes().all(|digit| digit == b'0'));
    match fact {
        Fact::User(users) => {
            let mut ids = status("Uid")?.split_whitespace();
            let uid = ids.next()?;
            Some(uid.parse().is_ok_and(|uid| users.contains(uid)) && ids.all(|id| id == uid))
        }
        Fact::NoCapabilities => ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]
            .into_iter()
            .try_fold(true, |all, set| Some(all & is_empty(set)?)),
        Fact::NoNewPrivileges => Some(status("NoNewPrivs")? == "1"),
        Fact::SystemCallFilter => Some(status("Seccomp")? == "2"),
        Fact::LoopbackOnly => Some(interfaces(part(report, "/proc/net/dev")) == ["lo"]),
        Fact::NoConnection => Some(part(report, "reached").trim() == "tried"),
        Fact::NoVariable(start) => {
            let names = Some(part(report, "variables")).filter(|names| !names.is_empty())?;
            Some(!names.lines().any(|name| name.starts_with(start)))
        }
        Fact::ReadOnlyRoot => {
            Some(root_options(part(report, "/proc/self/mountinfo"))?.split(',').any(|option| option == "ro"))
        }
        Fact::WritableData => Some(part(report, "writable").trim() == "yes"),
        Fact::ReadOnlyControlGroups => Some(part(report, "groups").trim() != "open"),
        Fact::NoCorePipe => Some(!part(report, "/proc/sys/kernel/core_pattern").starts_with(['|', '@'])),
        Fact::MemoryLimit(bytes) => limit(report, ["memory.max", "memory/memory.limit_in_bytes"], bytes),
        Fact::ProcessLimit(count) => limit(report, ["pids.max", "pids/pids.max"], count.into()),
        Fact::ProcessesRefused => {
            Some(part(report, "processes").trim()).filter(|found| !found.is_empty()).map(|found| found == "limited")
        }
    }
}

/// Control groups v2 and v1 name a limit differently.
fn limit(report: &str, names: [&str; 2], expected: u64) -> Option<bool> {
    let mut found = names.into_iter().map(|name| part(report, &format!("/sys/fs/cgroup/{name}")).trim());
    Some(found.find(|text| !text.is_empty())?.parse() == Ok(expected))
}

/// The text after the line `== name`, up to the next such line. Empty when the file was missing.
fn part<'a>(report: &'a str, name: &str) -> &'a str {
    let mark = format!("== {name}\n");
    match report.split_once(&mark) {
        Some((_, rest)) if !rest.starts_with("== ") => rest.split_once("\n== ").map_or(rest, |(part, _)| part),
        _ => "",
    }
}

/// A field of `/proc/self/status`.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// The names in `/proc/net/dev`, below its two title lines.
fn interfaces(dev: &str) -> Vec<&str> {
    dev.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim()).collect()
}

/// How `/` is mounted (proc(5): the fifth field is the mount point, the sixth the options).
fn root_options(mountinfo: &str) -> Option<&str> {
    let root = |line: &&str| line.split_whitespace().nth(4) == Some("/");
    mountinfo.lines().rfind(root)?.split_whitespace().nth(5)
}

/// As a sandbox reports itself, on control groups v2.
#[cfg(test)]
pub(crate) const PASSING_REPORT: &str = "\
== variables
HOME
== reached
tried
== /proc/self/status
Name:\tcat
Uid:\t1000\t1000\t1000\t1000
CapInh:\t0000000000000000
CapPrm:\t0000000000000000
CapEff:\t0000000000000000
CapBnd:\t0000000000000000
CapAmb:\t0000000000000000
NoNewPrivs:\t1
Seccomp:\t2
== /proc/net/dev
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes
    lo:       0       0    0    0    0     0          0         0        0
== /proc/self/mountinfo
600 500 0:50 / / ro,relatime - overlay overlay rw,lowerdir=/x
601 600 0:51 / /data rw,relatime - ext4 /dev/vda rw
== /sys/fs/cgroup/memory.max
268435456
== /sys/fs/cgroup/memory/memory.limit_in_bytes
== /sys/fs/cgroup/pids.max
128
== /sys/fs/cgroup/pids/pids.max
== /proc/sys/kernel/core_pattern
core
== processes
limited
== writable
yes
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::RunnerUsers;

    fn required(fact: Fact) -> Expectation {
        Expectation::required(fact, format!("{fact:?}"))
    }

    const FACTS: [Fact; 14] = [
        Fact::User(RunnerUsers::one(1000)),
        Fact::NoCapabilities,
        Fact::NoNewPrivileges,
        Fact::SystemCallFilter,
        Fact::LoopbackOnly,
        Fact::NoConnection,
        Fact::NoVariable("KUBERNETES_"),
        Fact::ReadOnlyRoot,
        Fact::WritableData,
        Fact::ReadOnlyControlGroups,
        Fact::NoCorePipe,
        Fact::MemoryLimit(268_435_456),
        Fact::ProcessLimit(128),
        Fact::ProcessesRefused,
    ];

    fn all() -> Vec<Expectation> {
        FACTS.map(required).to_vec()
    }

    #[test]
    fn inspection_passes_when_every_fact_holds() {
        assert_eq!(inspect(PASSING_REPORT, all()), Findings::default());
    }

    #[test]
    fn inspection_names_each_violation() {
        for (truth, lie, named) in [
            ("Uid:\t1000\t1000", "Uid:\t1000\t0", "User"),
            ("Uid:\t1000\t1000\t1000\t1000", "Uid:\t0\t0\t0\t0", "User"),
            ("Uid:\t1000\t1000\t1000\t1000", "Uid:\t70000\t70000\t70000\t70000", "User"),
            ("CapBnd:\t0000000000000000", "CapBnd:\t00000000a80425fb", "NoCapabilities"),
            ("CapEff:\t0000000000000000\n", "", "NoCapabilities"),
            ("CapEff:\t0000000000000000\n", "CapEff:\t\n", "NoCapabilities"),
            ("NoNewPrivs:\t1", "NoNewPrivs:\t0", "NoNewPrivileges"),
            ("Seccomp:\t2", "Seccomp:\t0", "SystemCallFilter"),
            ("    lo:", "  eth0:       0\n    lo:", "LoopbackOnly"),
            ("tried\n", "10.96.0.1/443\ntried\n", "NoConnection"),
            ("tried\n", "", "NoConnection"),
            ("HOME\n", "HOME\nKUBERNETES_PORT\n", "NoVariable"),
            ("/ / ro,relatime", "/ / rw,relatime", "ReadOnlyRoot"),
            ("yes\n", "", "WritableData"),
            ("yes\n", "yes\n== groups\nopen\n", "ReadOnlyControlGroups"),
            ("core\n", "|/usr/share/apport/apport %p\n", "NoCorePipe"),
            ("268435456", "max", "MemoryLimit"),
            ("268435456", "536870912", "MemoryLimit"),
            ("128\n", "max\n", "ProcessLimit"),
            ("limited\n", "open\n", "ProcessesRefused"),
            ("limited\n", "", "ProcessesRefused"),
        ] {
            let report = PASSING_REPORT.replacen(truth, lie, 1);
            assert_ne!(report, PASSING_REPORT, "{truth}");
            let Findings { violations, notes } = inspect(&report, all());
            assert!(violations.len() == 1 && violations[0].starts_with(named), "{lie}: {violations:?}");
            assert_eq!(notes.len(), 0);
        }
    }

    /// core(5): a program of the host, or since Linux 6.16 one behind a socket. Each other pattern is a file's.
    #[test]
    fn inspection_names_each_core_pattern_that_leads_to_a_program() {
        let is_reported = |pattern: &str| {
            let report = PASSING_REPORT.replacen("core\n", &format!("{pattern}\n"), 1);
            let Findings { violations, .. } = inspect(&report, vec![required(Fact::NoCorePipe)]);
            !violations.is_empty()
        };
        let systemd = "|/usr/lib/systemd/systemd-coredump %P %u %g %s %t 9223372036854775808 %h %d %F";
        for pattern in ["|", "||", "|/x", "| /x", "|x|y", "|%E", systemd, "@", "@/run/x", "@@/run/x"] {
            assert!(is_reported(pattern), "{pattern}");
        }
        for pattern in ["core.%p", "/var/crash/%e|%p", "%e@%h", "a|", "", "x", "%|"] {
            assert!(!is_reported(pattern), "{pattern}");
        }
    }

    #[test]
    fn inspection_accepts_any_user_of_the_range_and_no_mixture() {
        let expected = || vec![required(Fact::User(RunnerUsers::each(1000, 70_000..=70_999)))];
        let holds = |ids: &str| {
            inspect(&PASSING_REPORT.replace("1000\t1000\t1000\t1000", ids), expected()).violations.is_empty()
        };
        assert!(holds("1000\t1000\t1000\t1000") && holds("70000\t70000\t70000\t70000"));
        assert!(!holds("70000\t70000\t70000\t70001") && !holds("0\t0\t0\t0") && !holds("71000\t71000\t71000\t71000"));
    }

    #[test]
    fn inspection_fails_closed_on_an_empty_report() {
        // That no folder could be created and that there is no pipe are the facts that an empty part states.
        assert_eq!(inspect("", all()).violations.len(), FACTS.len() - 2);
    }

    #[test]
    fn inspection_warns_when_recommended_or_unobservable() {
        let open = format!("{PASSING_REPORT}== groups\nopen\n");
        let recommended = Expectation::recommended(Fact::ReadOnlyControlGroups, "ReadOnlyControlGroups");
        let Findings { violations, notes } = inspect(&open, vec![recommended]);
        assert_eq!((violations.len(), notes), (0, vec!["ReadOnlyControlGroups".to_owned()]));

        let limit = required(Fact::MemoryLimit(268_435_456)).or_unobserved("hidden");
        let hidden = PASSING_REPORT.replace("268435456\n", "");
        let Findings { violations, notes } = inspect(&hidden, vec![limit.clone()]);
        assert_eq!((violations.len(), notes), (0, vec!["hidden".to_owned()]));
        let v1 = hidden.replace("memory.limit_in_bytes\n", "memory.limit_in_bytes\n268435456\n");
        assert_eq!(inspect(&v1, vec![limit]), Findings::default(), "control groups v1");
    }
}
