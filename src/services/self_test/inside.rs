//! Judges what a program saw of itself. Pure. What it saw is text from a sandbox, and nothing in it is believed beyond this:
//! an engine that lies to us would have to lie in every one of these lines.

/// What a sandbox was told to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Expected {
    pub uid: u32,
    pub memory_bytes: u64,
    pub processes_max: u32,
    /// It has a kernel of its own, which shows neither our list of system calls nor the host's control groups.
    pub own_kernel: bool,
}

/// What is not as it was told to be, and what could not be seen: a sentence each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Findings {
    pub broken: Vec<String>,
    /// What is not as it should be and no reason not to serve; it is one not to take a runtime that there is no need to take.
    pub loose: Vec<String>,
    pub unseen: Vec<String>,
}

/// Reads a report of [`super::programs`].
pub(super) fn inspect(report: &str, expected: &Expected) -> Findings {
    let mut findings = Findings::default();
    let status = part(report, "/proc/self/status");
    let mut check = |holds: bool, otherwise: String| {
        if !holds {
            findings.broken.push(otherwise);
        }
    };
    check(
        field(status, "Uid").is_some_and(|ids| ids.split_whitespace().all(|id| id == expected.uid.to_string())),
        format!("programs do not run as user {}: the engine must honour the user of a container", expected.uid),
    );
    let none =
        |name| field(status, name).is_some_and(|mask| !mask.is_empty() && mask.bytes().all(|digit| digit == b'0'));
    check(
        ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"].into_iter().all(none),
        "programs have capabilities: the engine must drop all of them (`CapDrop: ALL`)".to_owned(),
    );
    check(
        field(status, "NoNewPrivs") == Some("1"),
        "programs may gain privileges: the engine must honour `no-new-privileges`".to_owned(),
    );
    check(
        expected.own_kernel || field(status, "Seccomp") == Some("2"),
        "system calls are not filtered: use an engine that was built with seccomp, and do not start it with \
         `--seccomp-profile=unconfined`"
            .to_owned(),
    );
    check(
        interfaces(part(report, "/proc/net/dev")) == ["lo"],
        "programs see a network: the engine must honour `NetworkMode: none`".to_owned(),
    );
    check(
        root_options(part(report, "/proc/self/mountinfo")).is_some_and(|options| options.split(',').any(|o| o == "ro")),
        "the root file system can be written: the engine must honour `ReadonlyRootfs`".to_owned(),
    );
    check(
        part(report, "writable").trim() == "yes",
        "/data cannot be written: SANDBOX_ROOT must be on a file system of the engine's host, writable for \
         SANDBOX_ENGINE__RUNNER_UID"
            .to_owned(),
    );
    if !expected.own_kernel && part(report, "groups").trim() == "open" {
        let told = "Programs can write to the file system at /sys/fs/cgroup, up to their limit on memory: use an engine with \
                    control groups of the second generation, or runc.";
        findings.loose.push(told.to_owned());
    }
    if !expected.own_kernel {
        findings.limit(report, "memory", ["memory.max", "memory/memory.limit_in_bytes"], expected.memory_bytes);
        findings.limit(report, "processes", ["pids.max", "pids/pids.max"], expected.processes_max.into());
    }
    findings
}

impl Findings {
    /// Control groups of the second generation have one name for a limit, those of the first another.
    fn limit(&mut self, report: &str, what: &str, names: [&str; 2], expected: u64) {
        let told = names.map(|name| part(report, &format!("/sys/fs/cgroup/{name}")).trim());
        match told.into_iter().find(|text| !text.is_empty()) {
            None => self.unseen.push(format!(
                "The limit on {what} could not be seen from inside a sandbox: look with `docker inspect` that it holds."
            )),
            Some(told) if told.parse() == Ok(expected) => {}
            Some(_) => self.broken.push(format!(
                "the limit on {what} does not hold: give the engine control groups that it may use (with cgroup v2, \
                 systemd and delegation; `docker info` names what is missing)"
            )),
        }
    }
}

/// What was printed behind `== name`, up to the next such line. Nothing, where a file was not there.
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

/// The names in `/proc/net/dev`, below its two lines of titles.
fn interfaces(dev: &str) -> Vec<&str> {
    dev.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim()).collect()
}

/// How `/` is mounted (proc(5): the fifth field is the place, the sixth the options).
fn root_options(mountinfo: &str) -> Option<&str> {
    let root = |line: &&str| line.split_whitespace().nth(4) == Some("/");
    mountinfo.lines().rfind(root)?.split_whitespace().nth(5)
}

/// As a sandbox reports itself, on control groups of the second generation.
#[cfg(test)]
pub(crate) const HONEST: &str = "\
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
== writable
yes
";

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: Expected = Expected { uid: 1000, memory_bytes: 268_435_456, processes_max: 128, own_kernel: false };

    #[test]
    fn an_honest_sandbox_passes() {
        assert_eq!(inspect(HONEST, &EXPECTED), Findings::default());
    }

    #[test]
    fn each_lie_is_named() {
        for (truth, lie, named) in [
            ("Uid:\t1000\t1000", "Uid:\t1000\t0", "user 1000"),
            ("CapBnd:\t0000000000000000", "CapBnd:\t00000000a80425fb", "capabilities"),
            ("CapEff:\t0000000000000000\n", "", "capabilities"),
            ("NoNewPrivs:\t1", "NoNewPrivs:\t0", "privileges"),
            ("Seccomp:\t2", "Seccomp:\t0", "system calls"),
            ("    lo:", "  eth0:       0\n    lo:", "network"),
            ("/ / ro,relatime", "/ / rw,relatime", "root file system"),
            ("yes\n", "", "/data cannot be written"),
            ("268435456", "max", "the limit on memory does not hold"),
            ("268435456", "536870912", "the limit on memory does not hold"),
            ("128\n", "max\n", "the limit on processes does not hold"),
        ] {
            let report = HONEST.replacen(truth, lie, 1);
            assert_ne!(report, HONEST, "{truth}");
            let findings = inspect(&report, &EXPECTED);
            assert!(findings.broken.len() == 1 && findings.broken[0].contains(named), "{lie}: {findings:?}");
        }
        assert_eq!(inspect("", &EXPECTED).broken.len(), 7, "nothing is believed that was not said");
    }

    #[test]
    fn a_folder_among_the_control_groups_is_told_and_no_reason_to_stop() {
        let open = format!("{HONEST}== groups\nopen\n");
        let findings = inspect(&open, &EXPECTED);
        assert!(findings.broken.is_empty() && findings.loose.len() == 1, "{findings:?}");
        assert_eq!(inspect(&open, &Expected { own_kernel: true, ..EXPECTED }), Findings::default());
        assert_eq!(inspect(&format!("{HONEST}== groups\n"), &EXPECTED), Findings::default());
    }

    #[test]
    fn what_cannot_be_seen_is_said_and_no_reason_to_stop() {
        let hidden = HONEST.replace("268435456\n", "").replace("128\n", "");
        let findings = inspect(&hidden, &EXPECTED);
        assert!(findings.broken.is_empty() && findings.unseen.len() == 2, "{findings:?}");
        let first = hidden.replace("memory.limit_in_bytes\n", "memory.limit_in_bytes\n268435456\n");
        let first = first.replace("pids/pids.max\n", "pids/pids.max\n128\n");
        assert_eq!(inspect(&first, &EXPECTED), Findings::default(), "control groups of the first generation");
        let own = Expected { own_kernel: true, ..EXPECTED };
        assert_eq!(inspect(&hidden.replace("Seccomp:\t2", "Seccomp:\t0"), &own), Findings::default());
    }
}
