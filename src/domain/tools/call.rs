//! What is told of one call of a tool.

use std::time::Duration;

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallEnd {
    Answered,
    /// The tool said that it failed.
    Failed,
    /// A rule or a person said no.
    Denied,
    /// It was not made: no such tool, wrong arguments, a limit.
    Refused,
    /// The server is away, late, or broke the protocol.
    Unavailable,
    Cancelled,
}

impl CallEnd {
    pub const ALL: [Self; 6] =
        [Self::Answered, Self::Failed, Self::Denied, Self::Refused, Self::Unavailable, Self::Cancelled];

    pub fn word(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Failed => "failed",
            Self::Denied => "denied",
            Self::Refused => "refused",
            Self::Unavailable => "unavailable",
            Self::Cancelled => "cancelled",
        }
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
