//! What the sandbox has used so far: from its control group where that can be read, the processor time else from the
//! processes, those that have ended and were collected included.

#[path = "../../init/src/figures.rs"]
#[allow(dead_code, reason = "shared with process 1, which uses the rest")]
mod figures;

use std::{fs, path::Path};

use figures::Meter;
use serde_json::{Value, json};

/// Reads the figures.
#[derive(Debug)]
pub struct Usage {
    meter: Meter,
    /// What a standby lost for memory before it became a session, which process 1 does not count either.
    oom_kills_before: Option<u64>,
}

impl Usage {
    /// Opens the counters.
    pub fn open() -> Self {
        let meter = Meter::open();
        let oom_kills_before = meter.read().oom_kills;
        Self { meter, oom_kills_before }
    }

    /// The content of the answer to `figures`; what is not known is `null`.
    pub fn read(&self) -> Value {
        let counters = self.meter.read();
        let cpu_ms = counters.cpu_micros.map(|micros| micros.div_ceil(1000)).or_else(processes_cpu_ms);
        json!({
            "cpuMs": cpu_ms,
            "memoryBytes": self.meter.memory_bytes(),
            "memoryPeakBytes": counters.memory_peak_bytes,
            "oomKills": counters.oom_kills.zip(self.oom_kills_before).map(|(now, then)| now.saturating_sub(then)),
        })
    }
}

/// User and system time of every process and of its collected children.
fn processes_cpu_ms() -> Option<u64> {
    let of = |entry: fs::DirEntry| {
        entry.file_name().to_str()?.parse::<u32>().ok()?;
        ticks_of(&entry.path())
    };
    let ticks: u64 = fs::read_dir("/proc").ok()?.flatten().filter_map(of).sum();
    Some(ticks * 1000 / rustix::param::clock_ticks_per_second().max(1))
}

/// Those of one process, by its folder in /proc. Its name may be no UTF-8.
fn ticks_of(process: &Path) -> Option<u64> {
    ticks(&String::from_utf8_lossy(&fs::read(process.join("stat")).ok()?))
}

/// utime, stime, cutime and cstime in a line of /proc/PID/stat. The name, in brackets, may hold anything.
fn ticks(stat: &str) -> Option<u64> {
    let numbers = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11).take(4);
    numbers.map(|number| number.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read as _,
        process::{Command, Stdio},
    };

    use super::*;

    #[test]
    fn process_whose_name_is_no_text_counts() {
        let mut shell = Command::new("sh");
        shell.args(["-c", r"printf '\377' > /proc/$$/comm; echo; read end"]);
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
        child.stdout.as_mut().expect("a pipe").read_exact(&mut [0]).expect("its line");
        let used = ticks_of(&Path::new("/proc").join(child.id().to_string()));
        drop(child.stdin.take());
        child.wait().expect("its end");
        assert!(used.is_some());
    }

    #[test]
    fn ticks_of_a_process_and_of_its_children_are_added() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 10 20 300 4000 20 0 1 0 5 6 7";
        assert_eq!((ticks(stat), ticks("7 (a) S 1"), ticks("")), (Some(4330), Some(0), None));
    }

    #[test]
    fn processor_time_of_this_machine_is_read() {
        assert!(processes_cpu_ms().is_some_and(|ms| ms > 0));
    }
}
