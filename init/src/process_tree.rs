//! All processes of the sandbox: collecting those that ended, and ending those that did not. As process 1 of a
//! container that is everything but this process; elsewhere (a test, or behind another init) its descendants, which
//! come back to it when their parents die because it declares itself their reaper.

use std::{
    collections::HashMap,
    fs, io, thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, set_child_subreaper, wait};
use serde::Serialize;

/// How a process ended; part of the frame EXIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ExitStatus {
    /// It exited with this status.
    Status(i32),
    /// This signal ended it.
    Signal(i32),
}

/// The processes that have ended and been collected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CollectedChildren {
    ended: Vec<(Pid, ExitStatus)>,
    /// Whether no child is left.
    pub is_last: bool,
}

impl CollectedChildren {
    /// How this one ended, if it did.
    pub fn of(&self, pid: Option<Pid>) -> Option<ExitStatus> {
        self.ended.iter().find(|(ended, _)| Some(*ended) == pid).map(|(_, exit_status)| *exit_status)
    }
}

/// Whether this is process 1, and so everything else in its namespace is the sandbox's.
pub fn is_process_1() -> bool {
    getpid().is_init()
}

/// Makes orphans children of this process. Process 1 is their parent in any case.
pub fn adopt_orphans() {
    if !is_process_1() {
        // Refused only by kernels from before containers; then orphans are process 1's to collect.
        let _ = set_child_subreaper(Some(getpid()));
    }
}

/// Collects every process that has ended.
pub fn collect() -> CollectedChildren {
    let mut collected = CollectedChildren::default();
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => {
                let exit_status = match status.terminating_signal() {
                    Some(signal) => Some(ExitStatus::Signal(signal)),
                    None => status.exit_status().map(ExitStatus::Status),
                };
                collected.ended.extend(exit_status.map(|exit_status| (pid, exit_status)));
            }
            Ok(None) => return collected,
            Err(_) => return CollectedChildren { is_last: true, ..collected },
        }
    }
}

/// Kills all of them. Not all are gone when this returns, and outside a container new ones may have come: the
/// caller repeats it until no child is left. All processes are killed together, so none sees another's death and exits
/// by itself because of it.
pub fn kill_all() {
    if is_process_1() {
        // Group 1 stands for kill(-1): every process except this one, atomically.
        let _ = kill_process_group(Pid::INIT, Signal::KILL);
        return;
    }
    for pid in descendants(getpid(), &parents()) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Kills all of them and waits until they are gone, up to `limit`: a process may be blocked in the kernel.
pub fn end(limit: Duration) {
    let began = Instant::now();
    loop {
        kill_all();
        if collect().is_last || began.elapsed() > limit {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Kills one of them, if it is still there.
pub fn kill(pid: Pid) {
    let _ = kill_process(pid, Signal::KILL);
}

/// Kills all but one of them.
pub fn kill_others(than: Pid) {
    others(than).unwrap_or_default().into_iter().for_each(kill);
}

/// Whether this one is the only process that is left.
pub fn is_only(pid: Pid) -> bool {
    others(pid).is_ok_and(|others| others.is_empty())
}

/// All of them but one.
fn others(than: Pid) -> io::Result<Vec<Pid>> {
    let mut all: Vec<_> = if is_process_1() {
        // Every other process in this namespace is the sandbox's, and reading a name in /proc takes no lock of that
        // process.
        processes()?.filter(|pid| *pid != 1).filter_map(Pid::from_raw).collect()
    } else {
        descendants(getpid(), &parents())
    };
    all.retain(|pid| *pid != than);
    Ok(all)
}

/// Every process in this namespace.
fn processes() -> io::Result<impl Iterator<Item = i32>> {
    let entries = fs::read_dir("/proc")?.flatten();
    Ok(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()))
}

/// Every process, and its parent.
fn parents() -> HashMap<i32, i32> {
    let one = |pid| Some((pid, parent(&String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/stat")).ok()?))?));
    processes().map(|all| all.filter_map(one).collect()).unwrap_or_default()
}

/// The parent in a line of /proc/PID/stat. The name, in brackets, may hold anything, also what is no UTF-8.
fn parent(stat: &str) -> Option<i32> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Every process below `root`, parents before their children. `parents` is not an atomic snapshot, so it may
/// contain a cycle.
fn descendants(root: Pid, parents: &HashMap<i32, i32>) -> Vec<Pid> {
    let mut found = vec![root.as_raw_nonzero().get()];
    let mut at = 0;
    while let Some(&parent) = found.get(at) {
        let children = parents.iter().filter(|(pid, of)| **of == parent && !found.contains(pid)).map(|(pid, _)| *pid);
        found.extend(children.collect::<Vec<_>>());
        at += 1;
    }
    found.into_iter().skip(1).filter_map(Pid::from_raw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_is_parsed_when_the_process_name_contains_brackets() {
        assert_eq!(parent("12 (a) b (c)) S 7 12 12 0 -1"), Some(7));
        assert_eq!(parent("nonsense"), None);
    }

    #[test]
    fn descendants_are_found_at_every_depth_and_no_other_process() {
        let parents = HashMap::from([(10, 1), (11, 10), (12, 11), (13, 12), (20, 1), (1, 0), (30, 31), (31, 30)]);
        let found: Vec<_> = descendants(Pid::from_raw(10).expect("positive"), &parents)
            .iter()
            .map(|pid| pid.as_raw_nonzero().get())
            .collect();
        assert_eq!(found, [11, 12, 13], "parents come first");
    }
}
