//! The limits of one run, and how it ended: its code, its figures, and one sentence for a model. The name of a number
//! ends with its unit.

use std::time::Duration;

use serde::Serialize;

use super::words::named;

/// The signal that ends a program whose file is as long as it may become.
const SIGXFSZ: i32 = 25;

/// Makes the struct of all limits: the unit, type and default of each.
macro_rules! limits {
    ($($(#[$doc:meta])+ $limit:ident: $type:ty = $default:expr,)+) => {
        /// The limits of one run. The defaults are those of the settings. The audit log has them by these names.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
        pub struct Limits {
            $($(#[$doc])+ pub $limit: $type,)+
        }

        impl Limits {
            /// No limit: what a request leaves to others.
            pub const UNBOUNDED: Self = Self { $($limit: <$type>::MAX,)+ };

            /// The smaller of each limit and the ceiling's.
            #[must_use]
            pub fn at_most(&self, ceiling: &Self) -> Self {
                Self { $($limit: self.$limit.min(ceiling.$limit),)+ }
            }
        }

        impl Default for Limits {
            fn default() -> Self {
                Self { $($limit: $default,)+ }
            }
        }
    };
}

limits! {
    /// CPU time per second of wall clock, in thousandths of a core.
    cpu_millis: u32 = 500,
    /// Memory, swap included (there is none), in bytes.
    memory_bytes: u64 = 256 << 20,
    /// Wall clock time from sending the program, in milliseconds.
    wall_ms: u64 = 30_000,
    /// Processes and threads together.
    processes_max: u32 = 128,
    /// Open files of one process.
    open_files_max: u32 = 1024,
    /// Size of one file, in bytes.
    file_bytes_max: u64 = 100 << 20,
    /// Output of both streams together; a program that prints more is stopped. In bytes.
    output_bytes_max: u64 = 16 << 20,
    /// How much of the output is kept for the answer: its beginning and its end. In bytes. No limit of the program, so
    /// the audit log leaves it out.
    #[serde(skip)]
    output_kept_bytes: u64 = 256 << 10,
    /// Size of `/tmp`, in bytes. It counts as memory.
    tmp_bytes: u64 = 64 << 20,
}

impl Limits {
    pub fn wall(&self) -> Duration {
        Duration::from_millis(self.wall_ms)
    }
}

named! {
    /// How a run ended. Its words are the same in every API surface, log and metric.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Ended {
        /// The program ended by itself.
        Exited {
            /// 0 to 255.
            code: i32,
        } = "exited",
        /// A signal that we did not send ended the program.
        Signaled { signal: i32 } = "signaled",
        /// The wall clock limit was reached.
        TimedOut = "timed_out",
        /// The kernel killed the program itself for its memory use. Where it killed only a child, this is the
        /// program's own end, and [`Outcome::oom_killed`] is set.
        OutOfMemory = "out_of_memory",
        /// It printed more than the ceiling.
        OutputLimit = "output_limit",
        /// It wrote more than the disk may hold.
        DiskLimit(DiskLimit) = "disk_limit",
        /// It was refused another process or thread, and failed.
        ProcessLimit = "process_limit",
        /// A client or the server's stop cancelled it.
        Cancelled = "cancelled",
    }
}

/// The limit on the disk that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskLimit {
    /// Bytes of the conversation's files.
    Bytes { max: u64 },
    /// Files, folders and links in the conversation.
    Entries { max: u64 },
    /// Bytes of the files of all conversations of the owner.
    Owner { max: u64 },
    /// Free bytes on the server's disk.
    Free { min: u64 },
    /// The program closed a folder, so that its files cannot be measured.
    Closed,
}

impl DiskLimit {
    /// What happened and what to do.
    pub fn sentence(self) -> String {
        match self {
            Self::Bytes { max } => format!(
                "The conversation's files took more than {} MiB on disk, so the program was stopped, or failed at its \
                 end: delete files that are no longer needed, then write less or smaller ones.",
                mib(max)
            ),
            Self::Entries { max } => format!(
                "The conversation held more than {max} files and folders, so the program was stopped, or failed at its \
                 end: delete those that are no longer needed, then put many small files into one."
            ),
            Self::Owner { max } => format!(
                "The files of all your conversations reached {} MiB on disk, so not all that the program wrote was \
                 stored: delete files or conversations that are no longer needed, then try again.",
                mib(max)
            ),
            Self::Free { min } => format!(
                "The program was stopped because the server's disk had less than {} MiB left: write less; the operator \
                 must free space on it.",
                mib(min)
            ),
            Self::Closed => "The program closed a folder to the server, so the size of its files is not known, and it \
                             was stopped, or failed at its end: run `chmod -R a+rwX /data` first in the next program."
                .to_owned(),
        }
    }
}

impl Ended {
    /// One of each kind, for documents.
    pub const EXAMPLES: [Self; 9] = [
        Self::Exited { code: 0 },
        Self::Exited { code: 1 },
        Self::Signaled { signal: 11 },
        Self::TimedOut,
        Self::OutOfMemory,
        Self::OutputLimit,
        Self::DiskLimit(DiskLimit::Bytes { max: 1 << 30 }),
        Self::ProcessLimit,
        Self::Cancelled,
    ];

    /// Whether the program ended with status 0.
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Exited { code: 0 })
    }

    /// The status that the program exited with, or the signal that ended it, where it ended by either.
    pub fn status_or_signal(&self) -> (Option<i32>, Option<i32>) {
        match *self {
            Self::Exited { code } => (Some(code), None),
            Self::Signaled { signal } => (None, Some(signal)),
            _ => (None, None),
        }
    }
}

/// What a run used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// From the program being handed over until its end was known.
    pub wall: Duration,
    /// CPU time; `None` when the runner does not report it.
    pub cpu: Option<Duration>,
    /// The most that the sandbox has used since it started, earlier cells included; `None` when the runner does not
    /// report it.
    pub memory_peak_bytes: Option<u64>,
    /// Printed bytes, kept or not.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    /// Created and changed files, listed or not.
    pub files: u64,
}

impl Figures {
    /// The CPU time that counts for a limit of it. Where it is not known, this is the most that `cpu_millis`, in
    /// thousandths of a core, allows: a program must not go uncounted by keeping it from being reported.
    pub fn cpu_or_most(&self, cpu_millis: u32) -> Duration {
        self.cpu.unwrap_or_else(|| self.wall.saturating_mul(cpu_millis) / 1000)
    }
}

/// How a run ended, with its figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    pub ended: Ended,
    /// Some process in the sandbox was killed for memory, the program itself or a child of it.
    pub oom_killed: bool,
    pub limits: Limits,
    pub figures: Figures,
}

impl Outcome {
    /// That of a program which was cancelled before it began.
    pub fn not_begun(limits: Limits) -> Self {
        Self { ended: Ended::Cancelled, oom_killed: false, limits, figures: Figures::default() }
    }

    /// One sentence for a model or a person: what happened, which limit at what value, and what to change.
    pub fn sentence(&self) -> String {
        let limits = &self.limits;
        let memory = mib(limits.memory_bytes);
        match self.ended {
            Ended::Exited { code } if self.oom_killed => format!(
                "The program exited with status {code}, but one of its processes was killed for reaching the memory \
                 limit of {memory} MiB: work on smaller pieces at a time."
            ),
            Ended::Exited { code: 0 } => "The program ran to its end (exit status 0).".to_owned(),
            Ended::Exited { code } if self.figures.stderr_bytes == 0 => {
                format!("The program failed with exit status {code}.")
            }
            Ended::Exited { code } => {
                format!("The program failed with exit status {code}: its standard error says why.")
            }
            Ended::Signaled { signal: SIGXFSZ } => format!(
                "The program was ended by signal {SIGXFSZ} (SIGXFSZ) because a file became longer than the limit of {} \
                 MiB: write several smaller files.",
                mib(limits.file_bytes_max)
            ),
            Ended::Signaled { signal } => format!(
                "The program was ended by signal {signal}{}: this is a crash inside the program, not a limit.",
                signal_name(signal).map(|name| format!(" ({name})")).unwrap_or_default()
            ),
            Ended::TimedOut => format!(
                "The program was stopped at the time limit of {} s: make it do less work or split the work into \
                 several runs; files it wrote to /data are kept.",
                seconds(limits.wall_ms)
            ),
            Ended::OutOfMemory => format!(
                "The program was killed for reaching the memory limit of {memory} MiB: work on smaller pieces at a \
                 time, or read files in chunks."
            ),
            Ended::OutputLimit => format!(
                "The program was stopped because it printed more than {}: print less, or write the data to a file in \
                 /data.",
                amount(limits.output_bytes_max)
            ),
            Ended::DiskLimit(limit) => limit.sentence(),
            Ended::ProcessLimit => format!(
                "The program failed because it reached the limit of {} processes and threads: start fewer at a time.",
                limits.processes_max
            ),
            Ended::Cancelled => "The run was cancelled before the program ended.".to_owned(),
        }
    }
}

/// MiB, with one decimal if it is not zero.
pub fn mib(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10) / (1 << 20);
    if tenths.is_multiple_of(10) { (tenths / 10).to_string() } else { format!("{}.{}", tenths / 10, tenths % 10) }
}

/// The unit that the amount is at least one of.
fn amount(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{} KiB", mib(bytes.saturating_mul(1024))),
        _ => format!("{} MiB", mib(bytes)),
    }
}

fn seconds(ms: u64) -> String {
    if ms.is_multiple_of(1000) { (ms / 1000).to_string() } else { format!("{}.{:03}", ms / 1000, ms % 1000) }
}

/// A signal by its usual name; one that has none by its number.
pub fn signal_text(signal: i32) -> String {
    signal_name(signal).map_or_else(|| signal.to_string(), str::to_owned)
}

/// The usual name of a signal that can end a program (signal(7), x86 and ARM numbering).
fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_has_a_word_and_a_sentence_with_the_limit() {
        let all = [
            (Ended::Exited { code: 3 }, "status 3"),
            (Ended::Signaled { signal: 11 }, "SIGSEGV"),
            (Ended::TimedOut, "30 s"),
            (Ended::OutOfMemory, "256 MiB"),
            (Ended::OutputLimit, "16 MiB"),
            (Ended::DiskLimit(DiskLimit::Bytes { max: 3 << 19 }), "1.5 MiB"),
            (Ended::ProcessLimit, "128"),
            (Ended::Cancelled, "cancelled"),
        ];
        for ((ended, part), word) in all.into_iter().zip(Ended::WORDS) {
            let outcome = Outcome { ended, oom_killed: false, limits: Limits::default(), figures: Figures::default() };
            assert_eq!(ended.word(), word);
            assert!(outcome.sentence().contains(part), "{}", outcome.sentence());
        }
    }

    #[test]
    fn disk_limit_sentence_names_the_limit() {
        let rows = [
            (Ended::DiskLimit(DiskLimit::Entries { max: 50_000 }), "50000 files and folders"),
            (Ended::DiskLimit(DiskLimit::Free { min: 512 << 20 }), "less than 512 MiB left"),
            (Ended::Signaled { signal: 25 }, "limit of 100 MiB"),
        ];
        for (ended, part) in rows {
            let outcome = Outcome { ended, oom_killed: false, limits: Limits::default(), figures: Figures::default() };
            assert!(outcome.sentence().contains(part), "{}", outcome.sentence());
        }
    }

    #[test]
    fn output_limit_sentence_is_never_zero() {
        for (bytes, shown) in [(1, "1 bytes"), (1000, "1000 bytes"), (1536, "1.5 KiB"), (16 << 20, "16 MiB")] {
            assert_eq!(amount(bytes), shown);
        }
    }

    #[test]
    fn is_success_only_for_status_zero() {
        assert!(Ended::Exited { code: 0 }.is_success());
        assert!(!Ended::Exited { code: 1 }.is_success());
        assert!(!Ended::Cancelled.is_success());
    }
}
