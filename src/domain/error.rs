//! The list of machine codes, and the error that a client sees. Knows no surface: neither HTTP statuses nor tool names.

use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $word:literal,)*) => {
        /// The kind of an error, for programs. A user's program that fails is never one of these.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code {
            $($(#[$doc])* $name,)*
        }

        impl Code {
            /// Every code, for documents and tests.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The stable text of the code.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }
        }
    };
}

codes! {
    /// An argument breaks its rule; the message names it.
    InvalidArgument = "invalid_argument",
    /// The request does not have the form of the protocol.
    InvalidRequest = "invalid_request",
    /// No valid token.
    Unauthorized = "unauthorized",
    /// The request is not allowed.
    Forbidden = "forbidden",
    /// No runner image for the language.
    RunnerNotFound = "runner_not_found",
    /// The conversation has no files here.
    ConversationNotFound = "conversation_not_found",
    /// The caller has no such run: it never existed, belongs to another owner, or is no longer kept.
    RunNotFound = "run_not_found",
    /// No such file in the conversation.
    FileNotFound = "file_not_found",
    /// It exists, but is a link, a pipe, a device or a folder.
    NotAFile = "not_a_file",
    /// More bytes than the limit.
    TooLarge = "too_large",
    /// Too many requests are waiting.
    QueueFull = "queue_full",
    /// The token begins runs faster than allowed.
    RateLimited = "rate_limited",
    /// The run waited longer than the queue's limit.
    QueueTimeout = "queue_timeout",
    /// The server is stopping and starts nothing new.
    ShuttingDown = "shutting_down",
    /// The engine does not answer.
    EngineUnavailable = "engine_unavailable",
    /// The engine answered with a failure.
    EngineFailed = "engine_failed",
    /// A runner image broke the contract that its label promises.
    RunnerFailed = "runner_failed",
    /// The engine lost the sandbox while the program ran: whether it ended is unknown.
    EngineLost = "engine_lost",
    /// The disk is full.
    NoSpace = "no_space",
    /// The conversation's files reached their quota.
    QuotaExceeded = "quota_exceeded",
    /// Nothing is served at that path.
    NotFound = "not_found",
    /// The path exists, but not with that method.
    MethodNotAllowed = "method_not_allowed",
    /// The body is of a media type that is not accepted.
    UnsupportedMediaType = "unsupported_media_type",
    /// The body arrived too slowly.
    BodyTimeout = "body_timeout",
    /// A run is active in the conversation.
    ConversationBusy = "conversation_busy",
    /// The program takes no input, or no more of it.
    InputClosed = "input_closed",
    /// The program has not yet read the input it was sent.
    InputFull = "input_full",
    /// The idempotency key was already used with another request.
    IdempotencyKeyReused = "idempotency_key_reused",
    /// An archive holds an entry that is refused; the message names it.
    BadArchive = "bad_archive",
    /// A fault of the server.
    Internal = "internal",
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An operation that a message recommends. Each surface has its own name for it: a path, or a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Lists the languages.
    ListRunners,
    /// Lists a conversation's files.
    ListFiles,
    /// Writes a file.
    WriteFile,
}

/// An error as a client may see it: a code and a sentence that says what to do. The cause stays in the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub code: Code,
    /// Free of secrets, host paths and engine texts, and of names that only one surface has.
    pub message: String,
    /// The argument that breaks its rule, if it is one.
    pub argument: Option<String>,
    /// When to try again, in seconds from now, if that is known.
    pub retry_after_s: Option<u64>,
    /// The recommended operation; the surface that answers adds its own name for it.
    pub operation: Option<Operation>,
}

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), argument: None, retry_after_s: None, operation: None }
    }

    /// An argument that breaks its rule: `name` is the argument, `why` completes «`name`: …».
    pub fn argument(name: &str, why: impl fmt::Display) -> Self {
        Self::new(Code::InvalidArgument, format!("{name}: {why}")).about(name)
    }

    /// The same failure, with the time after which a client may try again.
    #[must_use]
    pub fn retry_after(self, seconds: u64) -> Self {
        Self { retry_after_s: Some(seconds), ..self }
    }

    /// The same failure, naming an argument.
    #[must_use]
    pub fn about(self, argument: &str) -> Self {
        Self { argument: Some(argument.to_owned()), ..self }
    }

    /// The same failure, recommending an operation.
    #[must_use]
    pub fn see(self, operation: Operation) -> Self {
        Self { operation: Some(operation), ..self }
    }

    /// The message in the words of a surface, which names its operations by `name`.
    pub fn sentence(&self, name: impl FnOnce(Operation) -> &'static str) -> String {
        match self.operation {
            Some(operation) => format!("{} (see `{}`)", self.message.trim_end_matches('.'), name(operation)),
            None => self.message.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct() {
        let words: std::collections::HashSet<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(words.len(), Code::ALL.len());
    }

    #[test]
    fn sentence_names_the_operation_as_the_surface_does() {
        let failure = Failure::argument("code", "it is too long: write a file.");
        assert_eq!(failure.sentence(|_| "x"), "code: it is too long: write a file.");
        assert_eq!(failure.see(Operation::WriteFile).sentence(|_| "x"), "code: it is too long: write a file (see `x`)");
    }
}
