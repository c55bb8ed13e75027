//! What a caller asks for: whether a runner can run it, and what it may use.

use bytes::Bytes;

use crate::{
    domain::{
        ConversationKey, Environment, Failure, Language, Limits, RunId, SafePath, SessionId, TraceContext,
        error::Operation,
    },
    ports::runner::Runner,
    services::sandbox::Sandboxes,
};

/// The least that the server's own test of the engine is given, whatever the limits of programs.
const SELF_TEST_WALL_MS: u64 = 30_000;
const SELF_TEST_OUTPUT_BYTES: u64 = 64 << 10;

/// The session that executes a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellSession {
    /// That of the conversation and the language; one is opened where there is none.
    Any,
    /// This one, if it is still open.
    Open(SessionId),
    /// One that ends with the cell. For a conversation of its own: its other sessions end too.
    Once,
}

/// A program and how to run it. Only a framed runner takes arguments and input.
#[derive(Debug, Clone)]
pub struct RunRequest {
    /// Its id, where that was stored before it begins; used for no other run.
    pub id: Option<RunId>,
    /// The conversation whose files are `/data`.
    pub conversation: ConversationKey,
    /// A language or an alias of one.
    pub language: Language,
    pub program: Bytes,
    pub args: Vec<String>,
    /// Variables for its environment. Those of a session are given when it is opened.
    pub env: Environment,
    /// The network policies that it wants, of those that hold for it; `None`: all of them. Those of a session are given
    /// when it is opened.
    pub network: Option<Vec<String>>,
    /// What the program reads from its standard input.
    pub stdin: Bytes,
    /// More of it follows while the program runs: [`super::Run::send_input`].
    pub stdin_open: bool,
    /// The program is a cell of this session.
    pub session: Option<CellSession>,
    /// What this run may use, where it is less than the server's limits; [`Limits::UNBOUNDED`] in what it leaves to
    /// them.
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
            id: None,
            conversation,
            language,
            program,
            args: Vec::new(),
            env: Environment::default(),
            network: None,
            stdin: Bytes::new(),
            stdin_open: false,
            session: None,
            limits: None,
            files: Vec::new(),
            throw_away: false,
            detach: None,
            within: None,
        }
    }

    /// What it holds in memory, in bytes. Variables are left out: they are bounded by
    /// [`AllowedVariables`](crate::domain::environment::AllowedVariables).
    pub(super) fn bytes(&self) -> usize {
        let args = self.args.iter().map(String::len);
        let files = self.files.iter().map(|(_, bytes)| bytes.len());
        self.program.len() + self.stdin.len() + args.chain(files).sum::<usize>()
    }

    /// What it may use in this runner.
    pub(super) fn limits(&self, runner: &Runner, sandboxes: &Sandboxes) -> Limits {
        if self.conversation.owner.is_self_test() {
            // Its sandbox has the usual limits, which the isolation check expects, whatever memory its runner asks for;
            // the waiting time and the output are not what is tested.
            let usual = &sandboxes.limits;
            return Limits {
                wall_ms: usual.wall_ms.max(SELF_TEST_WALL_MS),
                output_bytes_max: usual.output_bytes_max.max(SELF_TEST_OUTPUT_BYTES),
                output_kept_bytes: usual.output_kept_bytes.max(SELF_TEST_OUTPUT_BYTES),
                ..*usual
            };
        }
        let usual = sandboxes.limits_of(runner);
        self.limits.map_or(usual, |asked| asked.at_most(&usual))
    }

    /// Whether this runner can run it.
    pub(super) fn check(&self, runner: &Runner, program_bytes_max: usize) -> Result<(), Failure> {
        if self.program.len() > program_bytes_max {
            let why = format!(
                "it is longer than {program_bytes_max} bytes: write long data to a file and read it from /data"
            );
            return Err(Failure::argument("code", why).see(Operation::WriteFile));
        }
        for (argument, used) in
            [("args", !self.args.is_empty()), ("env", !self.env.is_empty()), ("network", self.network.is_some())]
        {
            if used && self.session.is_some() {
                return Err(Failure::argument(argument, "a cell of a session takes none"));
            }
        }
        if self.session.is_some() {
            runner.check_sessions()?;
        }
        let framed_only = [
            ("args", !self.args.is_empty()),
            ("env", !self.env.is_empty()),
            ("stdin", !self.stdin.is_empty()),
            ("stdinOpen", self.stdin_open),
        ];
        let refused = framed_only.into_iter().find(|(_, used)| *used && !runner.takes_input());
        refused.map_or(Ok(()), |(argument, _)| {
            let why = format!("the runner of `{}` takes neither arguments nor variables nor input", runner.language);
            Err(Failure::argument(argument, why))
        })
    }
}
