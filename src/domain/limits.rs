//! The limits of one run. A name ends with its unit.

use std::time::Duration;

/// The limits of one run. The defaults are those of the settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// CPU time per second of wall clock, in thousandths of a core.
    pub cpu_millis: u32,
    /// Memory, swap included (there is none), in bytes.
    pub memory_bytes: u64,
    /// Wall clock time from sending the program, in milliseconds.
    pub wall_ms: u64,
    /// Processes and threads together.
    pub processes_max: u32,
    /// Open files of one process.
    pub open_files_max: u32,
    /// Size of one file, in bytes.
    pub file_bytes_max: u64,
    /// Output of both streams together; a program that prints more is stopped. In bytes.
    pub output_bytes_max: u64,
    /// How much of the output is kept for the answer: its beginning and its end. In bytes.
    pub output_kept_bytes: u64,
    /// Size of `/tmp`, in bytes. It counts as memory.
    pub tmp_bytes: u64,
}

impl Limits {
    /// No limit: what a request leaves to others.
    pub const UNBOUNDED: Self = Self {
        cpu_millis: u32::MAX,
        memory_bytes: u64::MAX,
        wall_ms: u64::MAX,
        processes_max: u32::MAX,
        open_files_max: u32::MAX,
        file_bytes_max: u64::MAX,
        output_bytes_max: u64::MAX,
        output_kept_bytes: u64::MAX,
        tmp_bytes: u64::MAX,
    };

    /// The smaller of each limit and the ceiling's.
    #[must_use]
    pub fn at_most(&self, ceiling: &Self) -> Self {
        Self {
            cpu_millis: self.cpu_millis.min(ceiling.cpu_millis),
            memory_bytes: self.memory_bytes.min(ceiling.memory_bytes),
            wall_ms: self.wall_ms.min(ceiling.wall_ms),
            processes_max: self.processes_max.min(ceiling.processes_max),
            open_files_max: self.open_files_max.min(ceiling.open_files_max),
            file_bytes_max: self.file_bytes_max.min(ceiling.file_bytes_max),
            output_bytes_max: self.output_bytes_max.min(ceiling.output_bytes_max),
            output_kept_bytes: self.output_kept_bytes.min(ceiling.output_kept_bytes),
            tmp_bytes: self.tmp_bytes.min(ceiling.tmp_bytes),
        }
    }

    pub fn wall(&self) -> Duration {
        Duration::from_millis(self.wall_ms)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            cpu_millis: 500,
            memory_bytes: 256 << 20,
            wall_ms: 30_000,
            processes_max: 128,
            open_files_max: 1024,
            file_bytes_max: 100 << 20,
            output_bytes_max: 16 << 20,
            output_kept_bytes: 256 << 10,
            tmp_bytes: 64 << 20,
        }
    }
}
