//! The record of one call of a tool.

use std::time::Duration;

use crate::domain::words::words;

words! {
    /// How a call ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum CallEnd: word {
        Answered = "answered",
        /// The tool said that it failed.
        Failed = "failed",
        /// A rule or a person said no.
        Denied = "denied",
        /// It was not made: no such tool, wrong arguments, a limit.
        Refused = "refused",
        /// The server is away, late, or broke the protocol.
        Unavailable = "unavailable",
        Cancelled = "cancelled",
    }
}

/// One call that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolUse {
    /// As the program wrote it, bounded.
    pub server: String,
    pub tool: String,
    pub end: CallEnd,
    /// Why it was not answered, for the program's author.
    pub why: Option<String>,
    /// SHA-256 of the canonical arguments, in hexadecimal digits.
    pub arguments_sha256: String,
    pub arguments_bytes: u64,
    pub took: Duration,
}
