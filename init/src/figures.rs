//! Resource use of the run, from the container's own control group, read before and after the program. A counter whose
//! file is missing is unknown; nothing here fails.

use std::{fs, fs::File, os::unix::fs::FileExt, path::PathBuf};

use serde::Serialize;

const ROOT: &str = "/sys/fs/cgroup";

/// The longest file of counters that is read; `cpu.stat` of version 2 has some 200 bytes.
const COUNTER_BYTES_MAX: usize = 1024;

/// The control group's counters at one moment.
#[derive(Debug, Default)]
pub struct Counters {
    /// Processor time, all processes together.
    pub cpu_micros: Option<u64>,
    /// The most memory that was in use at once since the group was made; only root in it could begin anew.
    pub memory_peak_bytes: Option<u64>,
    /// Processes that were killed for memory since the group was made.
    pub oom_kills: Option<u64>,
    forks_refused: Option<u64>,
}

/// What happened between two moments; part of the frame EXIT.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Figures {
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_peak_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    oom_kills: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    forks_refused: Option<u64>,
}

impl Counters {
    /// What happened since `before`.
    pub fn since(&self, before: &Self) -> Figures {
        let grown = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        Figures {
            cpu_ms: grown(self.cpu_micros, before.cpu_micros).map(|micros| micros.div_ceil(1000)),
            memory_peak_bytes: self.memory_peak_bytes,
            oom_kills: grown(self.oom_kills, before.oom_kills),
            forks_refused: grown(self.forks_refused, before.forks_refused),
        }
    }
}

/// Reads the counters. Its files are opened before the program arrives, so that a reading costs a system call for each
/// counter and no path lookup.
#[derive(Debug)]
pub struct Meter {
    cpu_micros: Option<Counter>,
    memory_peak_bytes: Option<Counter>,
    memory_bytes: Option<Counter>,
    oom_kills: Option<Counter>,
    forks_refused: Option<Counter>,
}

impl Meter {
    /// Opens the counters of this process' control group: those of version 2, else those of version 1.
    pub fn open() -> Self {
        let groups = Groups::of_this_process();
        let first = |a: Option<Counter>, (controller, file, key): (&str, &str, &'static str)| {
            a.or_else(|| groups.counter(controller, file, key))
        };
        let unified = |file, key| groups.counter("", file, key);
        let nanos = |counter: Counter| Counter { divisor: 1000, ..counter };
        Self {
            cpu_micros: unified("cpu.stat", "usage_usec")
                .or_else(|| groups.counter("cpuacct", "cpuacct.usage", "").map(nanos)),
            memory_peak_bytes: first(unified("memory.peak", ""), ("memory", "memory.max_usage_in_bytes", "")),
            memory_bytes: first(unified("memory.current", ""), ("memory", "memory.usage_in_bytes", "")),
            oom_kills: first(unified("memory.events", "oom_kill"), ("memory", "memory.oom_control", "oom_kill")),
            forks_refused: first(unified("pids.events", "max"), ("pids", "pids.events", "max")),
        }
    }

    /// The counters now.
    pub fn read(&self) -> Counters {
        let read = |counter: &Option<Counter>| counter.as_ref().and_then(Counter::read);
        Counters {
            cpu_micros: read(&self.cpu_micros),
            memory_peak_bytes: read(&self.memory_peak_bytes),
            oom_kills: read(&self.oom_kills),
            forks_refused: read(&self.forks_refused),
        }
    }

    /// The memory that the whole container holds now, in bytes.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.memory_bytes.as_ref().and_then(Counter::read)
    }
}

/// A number in an open file of the control group.
#[derive(Debug)]
struct Counter {
    file: File,
    /// The word before the number; empty where the number stands alone.
    key: &'static str,
    divisor: u64,
}

impl Counter {
    fn read(&self) -> Option<u64> {
        let mut bytes = [0; COUNTER_BYTES_MAX];
        // The kernel writes the file anew for each reading from its beginning.
        let length = self.file.read_at(&mut bytes, 0).ok()?;
        let text = std::str::from_utf8(&bytes[..length]).ok()?;
        let number = if self.key.is_empty() { text.trim().parse().ok() } else { entry(text, self.key) };
        Some(number? / self.divisor)
    }
}

/// Where this process stands in each hierarchy, as the kernel reports it.
struct Groups(String);

impl Groups {
    fn of_this_process() -> Self {
        Self(fs::read_to_string("/proc/self/cgroup").unwrap_or_default())
    }

    /// The folders in which a file of `controller` may be ("" for the unified hierarchy). The group's path leads
    /// nowhere where the container was given its own group as the root: then the root is the group.
    fn folders(&self, controller: &str) -> [PathBuf; 2] {
        let mount = PathBuf::from(ROOT).join(controller);
        let path = self.0.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            controllers.split(',').any(|name| name == controller).then_some(path)
        });
        [mount.join(path.unwrap_or_default().trim_start_matches('/')), mount]
    }

    /// A counter of this group, where there is one that can be read.
    fn counter(&self, controller: &str, file: &str, key: &'static str) -> Option<Counter> {
        let file = self.folders(controller).iter().find_map(|folder| File::open(folder.join(file)).ok())?;
        Some(Counter { file, key, divisor: 1 }).filter(|counter| counter.read().is_some())
    }
}

/// The number after `key` in a file of keys and numbers.
fn entry(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_is_found_by_its_whole_key() {
        let text = "low 0\noom 2\noom_kill 3\noom_group_kill 4\n";
        assert_eq!((entry(text, "oom_kill"), entry(text, "oom"), entry(text, "max")), (Some(3), Some(2), None));
    }

    #[test]
    fn control_group_is_looked_up_at_its_path_and_then_at_the_root() {
        let groups = Groups("12:cpu,cpuacct:/docker/ab\n0::/x\n".to_owned());
        assert_eq!(groups.folders("cpuacct")[0], PathBuf::from("/sys/fs/cgroup/cpuacct/docker/ab"));
        assert_eq!(groups.folders("")[0], PathBuf::from("/sys/fs/cgroup/x"));
        assert_eq!(groups.folders("pids")[1], PathBuf::from("/sys/fs/cgroup/pids"));
    }

    #[test]
    fn figures_are_differences_and_omit_unknown_counters() {
        let before = Counters { cpu_micros: Some(1_000), oom_kills: Some(1), ..Counters::default() };
        let after = Counters { cpu_micros: Some(3_500), oom_kills: Some(2), ..Counters::default() };
        let json = serde_json::to_string(&after.since(&before)).expect("plain data");
        assert_eq!(json, r#"{"cpuMs":3,"oomKills":1}"#);
    }

    #[test]
    fn memory_peak_is_that_of_the_container_since_it_started() {
        let [before, after] = [90, 120].map(|peak| Counters { memory_peak_bytes: Some(peak), ..Counters::default() });
        assert_eq!(after.since(&before).memory_peak_bytes, Some(120));
        assert_eq!(before.since(&before).memory_peak_bytes, Some(90), "of what was loaded before the program");
    }
}
