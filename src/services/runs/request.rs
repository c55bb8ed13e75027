//! What a caller asks for.

use bytes::Bytes;

use crate::{
    domain::path::SafePath,
    domain::{
        error::{Failure, Operation},
        id::Language,
        limits::Limits,
        owner::ConversationKey,
        trace::TraceContext,
    },
    ports::runner::Runner,
};

/// A program and how to run it. Only a framed runner takes arguments and input.
#[derive(Debug, Clone)]
pub struct RunRequest {
    /// The conversation whose files are `/data`.
    pub conversation: ConversationKey,
    /// A language or an alias of one.
    pub language: Language,
    /// The program's text.
    pub program: Bytes,
    /// Arguments of the program.
    pub args: Vec<String>,
    /// What the program reads from its standard input.
    pub stdin: Bytes,
    /// More of it follows while the program runs: [`super::Run::send_input`].
    pub stdin_open: bool,
    /// What this run may use, where it is less than the server's limits.
    pub limits: Option<Limits>,
    /// What is written to `/data` before the program starts.
    pub files: Vec<(SafePath, Bytes)>,
    /// The conversation is deleted when the run is over.
    pub throw_away: bool,
    /// Whether the run goes on when its caller goes away; otherwise it is cancelled. By default as the settings say.
    pub detach: Option<bool>,
    /// The caller's place in a trace.
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
            detach: None,
            within: None,
        }
    }

    /// Whether this runner can run it.
    pub(super) fn check(&self, runner: &Runner, program_bytes_max: usize) -> Result<(), Failure> {
        if self.program.len() > program_bytes_max {
            let why = format!(
                "it is longer than {program_bytes_max} bytes: write long data to a file and read it from /data"
            );
            return Err(Failure::argument("code", why).see(Operation::WriteFile));
        }
        let framed_only =
            [("args", !self.args.is_empty()), ("stdin", !self.stdin.is_empty()), ("stdinOpen", self.stdin_open)];
        match framed_only.into_iter().find(|(_, used)| *used && !runner.takes_input()) {
            Some((argument, _)) => {
                let why = format!("the runner of `{}` takes neither arguments nor input", runner.language);
                Err(Failure::argument(argument, why))
            }
            None => Ok(()),
        }
    }
}
