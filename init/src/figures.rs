//! What the run took, from the container's own control group: read before the program and after it. A file that is
//! not there is a figure that is not known; nothing here fails.

use std::{fs, path::PathBuf};

use serde::Serialize;

const ROOT: &str = "/sys/fs/cgroup";

/// The control group's counters at one moment.
#[derive(Debug, Default)]
pub struct Counters {
    cpu_micros: Option<u64>,
    memory_peak_bytes: Option<u64>,
    oom_kills: Option<u64>,
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
    /// The counters now.
    pub fn read() -> Self {
        let groups = Groups::of_this_process();
        Self {
            cpu_micros: groups
                .entry("", "cpu.stat", "usage_usec")
                .or_else(|| Some(groups.number("cpuacct", "cpuacct.usage")? / 1000)),
            memory_peak_bytes: groups
                .number("", "memory.peak")
                .or_else(|| groups.number("memory", "memory.max_usage_in_bytes")),
            oom_kills: groups
                .entry("", "memory.events", "oom_kill")
                .or_else(|| groups.entry("memory", "memory.oom_control", "oom_kill")),
            forks_refused: groups
                .entry("", "pids.events", "max")
                .or_else(|| groups.entry("pids", "pids.events", "max")),
        }
    }

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

/// Memory that the whole container holds now.
pub fn memory_bytes() -> Option<u64> {
    let groups = Groups::of_this_process();
    groups.number("", "memory.current").or_else(|| groups.number("memory", "memory.usage_in_bytes"))
}

/// Where this process stands in each hierarchy, as the kernel tells it.
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

    fn text(&self, controller: &str, file: &str) -> Option<String> {
        self.folders(controller).iter().find_map(|folder| fs::read_to_string(folder.join(file)).ok())
    }

    fn number(&self, controller: &str, file: &str) -> Option<u64> {
        self.text(controller, file)?.trim().parse().ok()
    }

    fn entry(&self, controller: &str, file: &str, key: &str) -> Option<u64> {
        entry(&self.text(controller, file)?, key)
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
    fn an_entry_is_found_by_its_whole_key() {
        let text = "low 0\noom 2\noom_kill 3\noom_group_kill 4\n";
        assert_eq!((entry(text, "oom_kill"), entry(text, "oom"), entry(text, "max")), (Some(3), Some(2), None));
    }

    #[test]
    fn a_group_is_looked_for_at_its_path_and_then_at_the_root() {
        let groups = Groups("12:cpu,cpuacct:/docker/ab\n0::/x\n".to_owned());
        assert_eq!(groups.folders("cpuacct")[0], PathBuf::from("/sys/fs/cgroup/cpuacct/docker/ab"));
        assert_eq!(groups.folders("")[0], PathBuf::from("/sys/fs/cgroup/x"));
        assert_eq!(groups.folders("pids")[1], PathBuf::from("/sys/fs/cgroup/pids"));
    }

    #[test]
    fn figures_are_differences_and_unknown_ones_are_left_out() {
        let before = Counters { cpu_micros: Some(1_000), oom_kills: Some(1), ..Counters::default() };
        let after = Counters { cpu_micros: Some(3_500), oom_kills: Some(2), ..Counters::default() };
        let json = serde_json::to_string(&after.since(&before)).expect("plain data");
        assert_eq!(json, r#"{"cpuMs":3,"oomKills":1}"#);
    }
}
