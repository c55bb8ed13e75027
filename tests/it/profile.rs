//! The container's profile, read from inside by a program: the engine applies everything that `create_body` requests
//! (a unit test compares that request with a literal).

use std::{collections::BTreeMap, os::unix::fs::MetadataExt as _};

use serde_json::json;

use crate::support::{
    Server,
    calls::{cell, open_session, streams},
    server::{FILE_SECRET, TOKEN},
};

const FACTS: &str = include_str!("../fixtures/profile.sh");

/// What is the same on every engine. Limits are those of [`LIMITS`].
const EXPECTED: [(&str, &str); 21] = [
    ("host", "sandbox"),
    ("folder", "/data"),
    ("CapInh", "0000000000000000"),
    ("CapPrm", "0000000000000000"),
    ("CapEff", "0000000000000000"),
    ("CapBnd", "0000000000000000"),
    ("CapAmb", "0000000000000000"),
    ("NoNewPrivs", "1"),
    ("Seccomp", "2"),
    ("interfaces", "lo"),
    ("routes", "0"),
    ("Max file size", "33554432 33554432"),
    ("Max core file size", "0 0"),
    ("Max open files", "512 512"),
    ("Max locked memory", "0 0"),
    ("Max pending signals", "256 256"),
    ("Max msgqueue size", "0 0"),
    ("enough processes", "yes"),
    ("oom", "1000"),
    ("first", "sandbox-init"),
    ("group", "/"),
];
const LIMITS: [(&str, &str); 6] = [
    ("SANDBOX_LIMITS__CPU_MILLIS", "250"),
    ("SANDBOX_LIMITS__MEMORY_BYTES", "134217728"),
    ("SANDBOX_LIMITS__PROCESSES_MAX", "60"),
    ("SANDBOX_LIMITS__OPEN_FILES_MAX", "512"),
    ("SANDBOX_LIMITS__FILE_BYTES_MAX", "33554432"),
    ("SANDBOX_LIMITS__TMP_BYTES", "8388608"),
];
const ENVIRONMENT: &str = "HOME=/tmp HOSTNAME=sandbox JE_ARROW_MALLOC_CONF=background_thread:false LANG=C.UTF-8 \
    MKL_NUM_THREADS=1 MPLBACKEND=module://sandbox_figures NUMEXPR_NUM_THREADS=1 OMP_NUM_THREADS=1 \
    OPENBLAS_NUM_THREADS=1 PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:\
    /data/.packages/python/bin:/data/.packages/javascript/node_modules/.bin PWD=/data \
    PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1 SHLVL=1";
const DEVICES: &str = "/dev/fd /dev/full /dev/mqueue /dev/null /dev/ptmx /dev/pts /dev/random /dev/shm /dev/stderr \
     /dev/stdin /dev/stdout /dev/tty /dev/urandom /dev/zero";
/// Writable mounts and their options. A mask is the null device, whose file system is shown as that of /dev; crun uses
/// the host's, read-only.
const WRITABLE: [(&str, &str); 7] = [
    ("/proc", "proc rw,nosuid,nodev,noexec"),
    ("/dev", "tmpfs rw,nosuid"),
    ("/dev/pts", "devpts rw,nosuid,noexec"),
    ("/dev/mqueue", "mqueue rw,nosuid,nodev,noexec"),
    ("/dev/shm", "tmpfs rw,nosuid,nodev,noexec"),
    ("/tmp", "tmpfs rw,nosuid,nodev,noexec"),
    ("/sys/fs/cgroup", "tmpfs rw,nosuid,nodev,noexec"),
];
const MASKS: [&str; 5] = ["/proc/cmdline", "/proc/interrupts", "/proc/kallsyms", "/proc/keys", "/proc/timer_list"];

#[tokio::test(flavor = "multi_thread")]
async fn program_sees_exactly_the_profile() {
    let mut settings = LIMITS.to_vec();
    settings.push(("SANDBOX_STANDBY__TOTAL_MAX", "0"));
    let server = Server::with(&settings).await;
    let result = server.run("facts", "bash", FACTS).await;
    let text = result["structuredContent"]["stdout"].as_str().expect("text");
    assert_eq!(result["isError"], false, "{result}");
    let facts: BTreeMap<_, _> = text.lines().filter_map(|line| line.split_once(": ")).collect();
    let fact = |name: &str| facts.get(name).map_or("(none)", |value| value.trim());
    for (name, expected) in EXPECTED {
        assert_eq!(fact(name), expected, "{name}");
    }
    let user = std::fs::metadata(server.root.join("facts/files")).expect("the folder").uid();
    assert_eq!(fact("user"), format!("{user}:{user} {user}"));
    assert_ne!(user, 0);
    assert_eq!(fact("environment"), ENVIRONMENT);
    // A link that leads nowhere: to /proc/kcore, which is masked or not there. Some runtimes always make it.
    assert_eq!(fact("devices").replacen("/dev/core ", "", 1), DEVICES);
    assert!(!text.contains(TOKEN) && !text.contains(FILE_SECRET), "{text}");
    assert_eq!((fact("memory"), fact("processes")), ("134217728", "60"));
    // Together with swap in the first generation of control groups, swap alone in the second.
    assert!(["134217728", "0"].contains(&fact("swap")), "{}", fact("swap"));
    let quota: Vec<u32> = fact("processor").split_whitespace().filter_map(|n| n.parse().ok()).collect();
    assert_eq!(quota[0] * 4, quota[1], "a quarter of a processor");
    for kind in ["cgroup", "ipc", "mnt", "net", "pid", "uts"] {
        let ours = std::fs::read_link(format!("/proc/self/ns/{kind}")).expect("a namespace");
        let theirs = fact(&format!("namespace {kind}"));
        assert!(theirs.starts_with(&format!("{kind}:[")) && theirs != ours.to_string_lossy(), "{kind}: {theirs}");
    }
    mounts_are_these(&facts);
    server.stop().await;
}

/// But for the names of its namespaces and its variables, which are the kernel's.
#[tokio::test(flavor = "multi_thread")]
async fn cell_sees_the_profile_of_a_program() {
    const LOOK: &str = "bash facts.sh | grep -v -e ^environment -e ^namespace";
    let server = Server::with(&[("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await;
    let program = format!("cat > facts.sh <<'END_OF_FACTS'\n{FACTS}\nEND_OF_FACTS\n{LOOK} > program.txt");
    let result = server.run("facts", "bash", &program).await;
    assert_eq!(result["isError"], false, "{result}");
    let session = open_session(&server, TOKEN, json!({"conversationId": "facts", "language": "bash"})).await;
    let code = format!("{LOOK} > cell.txt; grep -q '^Seccomp: 2' cell.txt && diff program.txt cell.txt && echo same");
    let (seen, _) = streams(&cell(&server, TOKEN, &session, &code).await);
    assert_eq!(seen.trim(), "same", "{seen}");
    server.stop().await;
}

fn mounts_are_these(facts: &BTreeMap<&str, &str>) {
    let mounts = facts.iter().filter_map(|(name, value)| Some((name.strip_prefix("mount ")?, *value)));
    let mounts: BTreeMap<_, _> = mounts.collect();
    for (target, how) in &mounts {
        let written = how.split(' ').nth(1).is_some_and(|options| options.starts_with("rw"));
        let known = WRITABLE.iter().any(|(at, as_it)| at == target && how.starts_with(as_it));
        assert!(!written || known || *target == "/data" || MASKS.contains(target), "{target}: {how}");
        let masked = MASKS.contains(target);
        assert!(
            !masked || how.starts_with("tmpfs ") || how.starts_with("devtmpfs ro,"),
            "{target} is not masked: {how}"
        );
    }
    assert!(mounts["/"].split(' ').nth(1).is_some_and(|options| options.starts_with("ro")), "{mounts:?}");
    assert!(mounts["/tmp"].contains("size=8192k,nr_inodes=4096"), "{}", mounts["/tmp"]);
    assert!(mounts["/dev/shm"].contains("size=16384k"), "{}", mounts["/dev/shm"]);
    for target in ["/proc/sys", "/proc/bus", "/proc/irq", "/proc/fs", "/sys", "/sys/firmware", "/sys/kernel"] {
        assert!(mounts[target].split(' ').nth(1).is_some_and(|options| options.starts_with("ro")), "{target}");
    }
    let of_ours: Vec<_> =
        mounts.keys().filter(|target| !target.starts_with("/proc") && !target.starts_with("/sys")).collect();
    // What engines add of their own, read-only: the names of the host.
    let of_ours: Vec<_> = of_ours.into_iter().filter(|target| !target.starts_with("/etc/")).collect();
    assert_eq!(of_ours, [&"/", &"/data", &"/dev", &"/dev/mqueue", &"/dev/pts", &"/dev/shm", &"/tmp"]);
}
