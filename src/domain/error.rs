//! The one list of machine codes. A code is ours and stable; the user's failing program is never one of these.

use std::fmt;

/// What kind of error this is, for a program to decide on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// An argument or parameter breaks its rule; the sentence names it.
    InvalidArgument,
    /// The request is not of the protocol's form.
    InvalidRequest,
    /// No token, or another one.
    Unauthorized,
    /// Known, and not allowed.
    Forbidden,
    /// No runner image for the language.
    RunnerNotFound,
    /// The conversation has no files here.
    ConversationNotFound,
    /// No such run of this caller's: never was, somebody else's, or no longer kept.
    RunNotFound,
    /// No such file in the conversation.
    FileNotFound,
    /// It is there, but it is not a plain file: a link, a pipe, a device, a folder.
    NotAFile,
    /// More bytes than the ceiling.
    TooLarge,
    /// Too many requests are waiting.
    QueueFull,
    /// This token begins runs faster than it may.
    RateLimited,
    /// It waited for its turn longer than the queue's limit.
    QueueTimeout,
    /// The server is stopping and starts nothing new.
    ShuttingDown,
    /// The engine does not answer.
    EngineUnavailable,
    /// The engine answered with a failure.
    EngineFailed,
    /// A runner image broke the contract that its label promises.
    RunnerFailed,
    /// The engine lost the sandbox while the program ran: whether it ended is not known.
    EngineLost,
    /// No room is left on the disk.
    NoSpace,
    /// The conversation's files take as much as they may.
    QuotaExceeded,
    /// Nothing is served at that path.
    NotFound,
    /// The path is served, the method is not.
    MethodNotAllowed,
    /// The body is not of a kind that is taken.
    UnsupportedMediaType,
    /// The body took too long to come.
    BodyTimeout,
    /// A run is going on in the conversation.
    ConversationBusy,
    /// The program takes no input, or no more of it.
    InputClosed,
    /// The program has not read the input that is there.
    InputFull,
    /// The same idempotency key came with another request before.
    IdempotencyKeyReused,
    /// An archive holds something that is not taken; the sentence names the entry.
    BadArchive,
    /// A fault of ours.
    Internal,
}

impl Code {
    /// Every code, for documents and tests.
    pub const ALL: [Self; 30] = [
        Self::InvalidArgument,
        Self::InvalidRequest,
        Self::Unauthorized,
        Self::Forbidden,
        Self::RunnerNotFound,
        Self::ConversationNotFound,
        Self::RunNotFound,
        Self::FileNotFound,
        Self::NotAFile,
        Self::TooLarge,
        Self::QueueFull,
        Self::RateLimited,
        Self::QueueTimeout,
        Self::ShuttingDown,
        Self::EngineUnavailable,
        Self::EngineFailed,
        Self::RunnerFailed,
        Self::EngineLost,
        Self::NoSpace,
        Self::QuotaExceeded,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::UnsupportedMediaType,
        Self::BodyTimeout,
        Self::ConversationBusy,
        Self::InputClosed,
        Self::InputFull,
        Self::IdempotencyKeyReused,
        Self::BadArchive,
        Self::Internal,
    ];

    /// The stable text of the code.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid_argument",
            Self::InvalidRequest => "invalid_request",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::RunnerNotFound => "runner_not_found",
            Self::ConversationNotFound => "conversation_not_found",
            Self::RunNotFound => "run_not_found",
            Self::FileNotFound => "file_not_found",
            Self::NotAFile => "not_a_file",
            Self::TooLarge => "too_large",
            Self::QueueFull => "queue_full",
            Self::RateLimited => "rate_limited",
            Self::QueueTimeout => "queue_timeout",
            Self::ShuttingDown => "shutting_down",
            Self::EngineUnavailable => "engine_unavailable",
            Self::EngineFailed => "engine_failed",
            Self::RunnerFailed => "runner_failed",
            Self::EngineLost => "engine_lost",
            Self::NoSpace => "no_space",
            Self::QuotaExceeded => "quota_exceeded",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::UnsupportedMediaType => "unsupported_media_type",
            Self::BodyTimeout => "body_timeout",
            Self::ConversationBusy => "conversation_busy",
            Self::InputClosed => "input_closed",
            Self::InputFull => "input_full",
            Self::IdempotencyKeyReused => "idempotency_key_reused",
            Self::BadArchive => "bad_archive",
            Self::Internal => "internal",
        }
    }

    /// The HTTP status that means the same (RFC 9110).
    pub fn http_status(self) -> u16 {
        match self {
            Self::InvalidArgument | Self::InvalidRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::RunnerNotFound
            | Self::ConversationNotFound
            | Self::RunNotFound
            | Self::FileNotFound
            | Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::BodyTimeout => 408,
            Self::NotAFile | Self::ConversationBusy | Self::InputClosed => 409,
            Self::UnsupportedMediaType => 415,
            Self::IdempotencyKeyReused | Self::BadArchive => 422,
            Self::TooLarge => 413,
            Self::RateLimited | Self::InputFull => 429,
            Self::QueueFull | Self::QueueTimeout | Self::ShuttingDown | Self::EngineUnavailable => 503,
            Self::EngineFailed | Self::RunnerFailed | Self::EngineLost => 502,
            Self::NoSpace | Self::QuotaExceeded => 507,
            Self::Internal => 500,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error as a client may see it: a code and one sentence that says what to do. The cause stays in the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The machine code.
    pub code: Code,
    /// One sentence, free of secrets, host paths and engine texts.
    pub message: String,
    /// The argument that breaks its rule, where it is one.
    pub argument: Option<String>,
    /// When it is worth trying again, in seconds from now, where that is known.
    pub retry_after_s: Option<u64>,
}

impl Failure {
    /// A failure with its sentence.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), argument: None, retry_after_s: None }
    }

    /// An argument that breaks its rule: `name` is the argument, `why` completes «`name`: …».
    pub fn argument(name: &str, why: impl fmt::Display) -> Self {
        Self::new(Code::InvalidArgument, format!("{name}: {why}")).about(name)
    }

    /// The same failure, with the time after which it is worth trying again.
    #[must_use]
    pub fn retry_after(self, seconds: u64) -> Self {
        Self { retry_after_s: Some(seconds), ..self }
    }

    /// The same failure, told of an argument.
    #[must_use]
    pub fn about(self, argument: &str) -> Self {
        Self { argument: Some(argument.to_owned()), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_words() {
        let words: std::collections::HashSet<_> = Code::ALL.iter().map(|c| c.as_str()).collect();
        assert_eq!(words.len(), Code::ALL.len());
        assert!(Code::ALL.iter().all(|c| (400..600).contains(&c.http_status())));
    }
}
