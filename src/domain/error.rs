//! The list of machine codes, and the error that a client sees. Knows no surface: neither HTTP statuses nor tool names.

use std::fmt;

use super::owner::ConversationKey;

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $word:literal, $remedy:literal;)*) => {
        /// The kind of an error, for programs. A user's program that fails is never one of these.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code {
            $($(#[doc = $doc])+ $name,)*
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

            /// What it means and what a client does about it, for documents.
            pub fn about(self) -> (&'static str, &'static str) {
                match self {
                    $(Self::$name => (concat!($($doc),+).trim_ascii(), $remedy),)*
                }
            }
        }
    };
}

codes! {
    /// An argument breaks its rule; the message names it.
    InvalidArgument = "invalid_argument", "Correct the argument that the message names.";
    /// The request does not have the form of the protocol.
    InvalidRequest = "invalid_request", "Send the request in the form that the message describes.";
    /// No valid token.
    Unauthorized = "unauthorized", "Send `Authorization: Bearer` with the token.";
    /// The request is not allowed.
    Forbidden = "forbidden", "Follow the message: another host name, a new link, or another mode of the file.";
    /// The token lacks a scope, or is for other languages; the message names it.
    InsufficientScope = "insufficient_scope", "Use a token that has the scope, or ask the operator for one.";
    /// There is no such token.
    TokenNotFound = "token_not_found", "List the tokens to see what is there.";
    /// The database does not answer.
    DatabaseUnavailable = "database_unavailable", "Try again; the operator must check that the database runs.";
    /// The issuer of a token does not answer, so the token cannot be verified.
    IssuerUnavailable = "issuer_unavailable", "Try again; the operator must check that the issuer's keys can be read.";
    /// A tool server does not answer, or its tools cannot be used.
    ToolUnavailable = "tool_unavailable", "Try again; the operator must check that the tool server runs.";
    /// No runner image for the language.
    RunnerNotFound = "runner_not_found", "Choose a language that is listed, or have the operator build its image.";
    /// The conversation has no files here.
    ConversationNotFound = "conversation_not_found", "Run a program or write a file in it first.";
    /// The caller has no such run: it never existed, belongs to another owner, or is no longer kept.
    RunNotFound = "run_not_found", "Run the program again.";
    /// The caller has no such session: it never existed, or belongs to another owner.
    SessionNotFound = "session_not_found", "Open a session.";
    /// The session was open and has ended; the message says why.
    SessionEnded = "session_ended", "Open a new session and set its variables again; the files are still there.";
    /// A session's kernel did not answer in time, because a cell runs; or the session is being restarted.
    SessionBusy = "session_busy", "Wait for the cell to end, or interrupt it.";
    /// The memory for sessions is in use, and no session may end for another; or the caller holds its share of it.
    SessionsFull = "sessions_full", "Close a session that is no longer needed, or try again later.";
    /// No such file in the conversation.
    FileNotFound = "file_not_found", "List the files to see what is there.";
    /// It exists, but is a link, a pipe, a device or a folder.
    NotAFile = "not_a_file", "Choose another path, or delete what is there first.";
    /// A program holds the file so that it cannot be opened now.
    FileBusy = "file_busy", "Try again when the program has ended.";
    /// More bytes than the limit, or the long answer of a request that was carried out is lost; the message says which.
    TooLarge = "too_large", "Send less, or in several parts; where the answer is lost, look at what was done.";
    /// Too many requests are waiting.
    QueueFull = "queue_full", "Try again after the seconds that `Retry-After` says.";
    /// The owner or the token has used up what is allowed in a period of time.
    RateLimited = "rate_limited", "Try again after the seconds that `Retry-After` says.";
    /// The run waited longer than the queue's limit.
    QueueTimeout = "queue_timeout", "Try again later, with fewer runs at once.";
    /// The server is stopping and starts nothing new.
    ShuttingDown = "shutting_down", "Try again in a moment.";
    /// The engine does not answer.
    EngineUnavailable = "engine_unavailable", "Try again; the operator must check that the engine runs.";
    /// The engine answered with a failure.
    EngineFailed = "engine_failed", "Try again; the server's log says more.";
    /// A runner image broke the contract that its label promises.
    RunnerFailed = "runner_failed", "The operator should rebuild the image.";
    /// The engine lost the sandbox while the program ran: whether it ended is unknown.
    EngineLost = "engine_lost", "Look at the files, then run the program again.";
    /// The server ended before the run did: whether it ended, and how, is unknown.
    ServerLost = "server_lost", "Look at the files, then run the program again, with a new idempotency key.";
    /// Programs and sessions of the conversation are at another server, which does not answer.
    HeldElsewhere = "held_elsewhere", "Try again after the seconds that `Retry-After` says.";
    /// The disk is full.
    NoSpace = "no_space", "The operator must free space.";
    /// The files of the conversation or of its owner, packages or skills reached their quota; the message says which.
    QuotaExceeded = "quota_exceeded", "Delete what is no longer needed.";
    /// Nothing is served at that path.
    NotFound = "not_found", "Use a path of the API.";
    /// The path exists, but not with that method.
    MethodNotAllowed = "method_not_allowed", "Use a method that the header `Allow` names.";
    /// The body is of a media type that is not accepted.
    UnsupportedMediaType = "unsupported_media_type", "Send the media type that the message names, without compression.";
    /// The body arrived too slowly.
    BodyTimeout = "body_timeout", "Send the body faster.";
    /// A run is active in the conversation.
    ConversationBusy = "conversation_busy", "Wait for the run to end, or cancel it.";
    /// The program takes no input, or no more of it.
    InputClosed = "input_closed", "Begin a run with `stdinOpen` to send it input.";
    /// The program has not yet read the input it was sent.
    InputFull = "input_full", "Send the piece again when the program has read.";
    /// The idempotency key was already used with another request.
    IdempotencyKeyReused = "idempotency_key_reused", "Choose a new key for another request.";
    /// An archive holds an entry that is refused; the message names it.
    BadArchive = "bad_archive", "Send a plain tar of files and folders; for a skill, a zip.";
    /// There is no such skill for the caller.
    SkillNotFound = "skill_not_found", "List the skills to see what is there.";
    /// What was uploaded breaks a rule of skills; the message names it.
    BadSkill = "bad_skill", "Correct what the message names and upload the skill again.";
    /// The operator has set no folder for skills.
    SkillsOff = "skills_off", "Do without skills, or have the operator set `[skills]`.";
    /// Packages cannot be installed here: the operator names no index for them, or the image has no tool for it.
    PackagesOff = "packages_off", "Use what is installed, or have the operator set `[packages]`.";
    /// The packages cannot be installed; the message has the tool's own words.
    PackagesRefused = "packages_refused", "Correct the names or the versions that the message is about.";
    /// The condition of the request (`If-Match`, `If-None-Match`) does not hold.
    PreconditionFailed = "precondition_failed", "Read the file again and decide anew.";
    /// A fault of the server.
    Internal = "internal", "Try again; the server's log says why.";
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
    /// The conversation that this server has to take before it can do this, or that another server has.
    pub conversation: Option<Box<ConversationKey>>,
}

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, message, argument: None, retry_after_s: None, operation: None, conversation: None }
    }

    /// What begins nothing any more, because the server ends.
    pub fn stopping() -> Self {
        Self::new(Code::ShuttingDown, "The server is stopping: try again in a moment.")
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

    /// The same failure in the words of a surface that has another name for the argument `name`.
    #[must_use]
    pub fn renamed(self, name: &str, own: &str) -> Self {
        match self.message.strip_prefix(name).filter(|why| why.starts_with(": ")) {
            Some(why) => {
                Self { message: format!("{own}{why}"), argument: self.argument.map(|_| own.to_owned()), ..self }
            }
            None => self,
        }
    }

    /// The same failure, which taking a conversation would repair.
    #[must_use]
    pub fn without(self, conversation: &ConversationKey) -> Self {
        Self { conversation: Some(Box::new(conversation.clone())), ..self }
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
    fn argument_has_the_name_that_the_surface_gives_it() {
        let failure = Failure::argument("code", "it is too long");
        assert_eq!(failure.clone().renamed("cod", "x"), failure);
        assert_eq!(failure.renamed("code", "command"), Failure::argument("command", "it is too long"));
        let unnamed = Failure::new(Code::RunnerNotFound, "language: there is none.").renamed("language", "lang");
        assert_eq!(unnamed, Failure::new(Code::RunnerNotFound, "lang: there is none."));
    }

    #[test]
    fn sentence_names_the_operation_as_the_surface_does() {
        let failure = Failure::argument("code", "it is too long: write a file.");
        assert_eq!(failure.sentence(|_| "x"), "code: it is too long: write a file.");
        assert_eq!(failure.see(Operation::WriteFile).sentence(|_| "x"), "code: it is too long: write a file (see `x`)");
    }
}
