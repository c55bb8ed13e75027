//! The limits of one run. A name ends with its unit.

use std::time::Duration;

use serde::Serialize;

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
