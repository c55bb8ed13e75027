//! What a program that got out would leave on this machine.

use std::{fs, path::Path};

/// Settings of the kernel that a way out would go through, or that would be changed for the fun of it.
const SETTINGS: [&str; 9] = [
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/domainname",
    "/proc/sys/kernel/sysrq",
    "/proc/sys/kernel/panic",
    "/proc/sys/kernel/randomize_va_space",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/net/ipv4/ip_forward",
];

pub fn settings() -> Vec<(&'static str, String)> {
    SETTINGS.iter().map(|path| (*path, fs::read_to_string(path).unwrap_or_default())).collect()
}

/// Processes in whose view of the files something below `root` is mounted: those of its sandboxes.
pub fn processes_that_mount(root: &Path) -> Vec<String> {
    let root = root.to_string_lossy();
    let processes =
        fs::read_dir("/proc").expect("/proc").filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let processes = processes.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    // One that ended meanwhile has no mounts.
    let mounts = |pid: &String| fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    processes.filter(|pid| mounts(pid).contains(root.as_ref())).collect()
}
