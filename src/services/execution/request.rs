//! What is asked of a run.

use bytes::Bytes;

use crate::domain::{id::Language, limits::Limits, owner::ConversationKey, path::SafePath, trace::TraceContext};

/// What is asked for.
#[derive(Debug, Clone)]
pub struct RunRequest {
    /// Whose files are `/data`.
    pub conversation: ConversationKey,
    /// A language or an alias of one.
    pub language: Language,
    /// The program's text.
    pub program: Bytes,
    /// Arguments of the program. Only a framed runner takes any.
    pub args: Vec<String>,
    /// What the program reads from its standard input. Only a framed runner takes any.
    pub stdin: Bytes,
    /// More of it follows while the program runs: [`super::Run::send_input`]. Only a framed runner takes any.
    pub stdin_open: bool,
    /// What this run may use, where it is less than the server's limits.
    pub limits: Option<Limits>,
    /// What is written to `/data` when it is this run's turn.
    pub files: Vec<(SafePath, Bytes)>,
    /// The conversation is deleted when the run is over.
    pub throw_away: bool,
    /// Where in a trace it is asked for.
    pub within: Option<TraceContext>,
}

impl RunRequest {
    /// A program without arguments and input, under the server's limits.
    pub fn new(conversation: ConversationKey, language: Language, program: Bytes) -> Self {
        Self {
            conversation,
            language,
            program,
            args: Vec::new(),
            stdin: Bytes::new(),
            stdin_open: false,
            limits: None,
            files: Vec::new(),
            throw_away: false,
            within: None,
        }
    }
}
