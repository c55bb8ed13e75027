//! The settings of the history.

use super::section::section;

section! {
    /// The history of runs and cells.
    pub struct History("history") {
        /// Whether the history keeps programs, not only their digests. true or false.
        source: bool = false,
        /// How much of a program is kept, in bytes.
        source_bytes_max: u64 = 16 << 10 => 1..=1 << 20,
        /// How long an entry of the history is kept, in seconds. 0: no limit. Usage is always kept.
        kept_s: u64 = 90 * 86_400 => 0..=100 * 365 * 86_400,
        /// Entries that are kept; the oldest are removed first.
        kept_max: u64 = 1_000_000 => 1..=1 << 40,
        /// Size of the entries that are kept, in bytes: 1 KiB for each, and its program, message and names of files;
        /// the oldest are removed first.
        kept_bytes: u64 = 1 << 30 => 1 << 20..=1 << 50,
    }
}
