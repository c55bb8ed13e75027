//! Sessions, as clients see them, and the bodies that open one and run a cell in it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    SessionWord, answers,
    arguments::{Program, Wait},
    rfc3339,
    run::RunLimits,
};
use crate::{
    domain::{ConversationId, Environment, Failure, Language, Limits, text::ms},
    services::{runs::CapturedOutput, sessions::SessionView},
};

/// The session to open.
#[derive(Debug, Default, Deserialize, JsonSchema, ToSchema)]
pub struct CreateSession {
    /// The conversation whose files are /data; a fresh one if none is named.
    #[serde(rename = "conversationId")]
    #[schema(value_type = Option<String>, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$", min_length = 1, max_length = 128)]
    pub conversation: Option<ConversationId>,
    /// A language or an alias of one; default python.
    #[schema(value_type = Option<String>, pattern = "^[A-Za-z0-9][A-Za-z0-9._+#-]*$", min_length = 1, max_length = 32)]
    pub language: Option<Language>,
    /// Environment variables, with names that the operator allows; no answer shows their values. A session that is open
    /// accepts no others.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    pub env: Option<Environment>,
    /// Names of the network policies that it may use, out of those of the token; default all, `[]` for none.
    #[schema(max_items = 64)]
    pub network: Option<Vec<String>>,
}

/// A cell to execute in a session.
#[derive(Debug, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateCell {
    /// The code of the cell.
    #[schema(value_type = String, min_length = 1)]
    pub code: Program,
    /// Standard input: one line for each request for input.
    pub stdin: Option<String>,
    /// Whether standard input stays open after `stdin`: more is sent with `sendInput`, which also ends it.
    pub stdin_open: Option<bool>,
    /// How many seconds to wait for the end; 0 answers at once. By default, the answer waits for the end.
    #[schema(value_type = Option<u64>, minimum = 0, maximum = 3600)]
    pub wait: Option<Wait>,
    /// Whether the cell goes on when the client disconnects; by default, the server's setting decides.
    pub detach: Option<bool>,
    /// Limits below the server's; higher values are lowered to the server's.
    pub limits: Option<CellLimits>,
}

/// Limits of a cell. The limits on memory and CPU are those of the session.
#[derive(Debug, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CellLimits {
    /// Wall clock, in milliseconds. A cell that reaches it is interrupted; the session goes on.
    #[schema(minimum = 1)]
    pub wall_ms: Option<u64>,
    /// Output of both streams together, in bytes.
    #[schema(minimum = 1)]
    pub output_bytes_max: Option<u64>,
}

/// A position in a piece of code.
#[derive(Debug, Deserialize, JsonSchema, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CodePosition {
    /// The code, of at most 256 KiB.
    pub code: String,
    /// The position, in characters; by default the end.
    pub cursor: Option<u64>,
}

/// A name in a piece of code.
#[derive(Debug, Deserialize, JsonSchema, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InspectCode {
    /// The code, of at most 256 KiB.
    pub code: String,
    /// A position in the name, in characters; by default the end.
    pub cursor: Option<u64>,
    /// Whether to include the source code, where it is known.
    pub detailed: Option<bool>,
}

answers! {
    /// A session.
    #[derive(JsonSchema)]
    pub struct SessionStatus(view: &SessionView) {
        /// Its id.
        session_id: String = view.session.to_string(),
        /// The same id, under the name that clients of CodeRunner read.
        #[serde(rename = "session_id")]
        coderunner_session_id: String = view.session.to_string(),
        /// The conversation whose files are /data.
        conversation_id: String = view.conversation.id.to_string(),
        /// The language's own name.
        language: String = view.language.to_string(),
        /// Its current state.
        #[schemars(extend("enum" = ["idle", "busy", "ended"]))]
        #[schema(value_type = SessionWord)]
        state: &'static str = view.state.word(),
        /// `active`, or `stopped` when it has ended; for clients of CodeRunner.
        status: &'static str = "active",
        /// When it was opened (RFC 3339).
        created_at: String = rfc3339(view.created_unix_s),
        /// Time since its last use, in milliseconds.
        idle_ms: u64 = ms(view.idle),
        /// Cells that were executed.
        cells: u64 = view.cells,
        /// Its memory limit, in bytes.
        memory_bytes_max: u64 = view.memory_bytes_max,
    }

    /// The open sessions.
    #[derive(JsonSchema)]
    pub struct SessionList(all: &[SessionView]) {
        /// Newest first.
        sessions: Vec<SessionStatus> = all.iter().map(SessionStatus::from).collect(),
    }

    /// The source of an installed module.
    pub struct ModuleSource((module, printed): (String, &CapturedOutput)) {
        /// Its name.
        name: String = module,
        /// The source.
        source: String = printed.text.clone(),
        /// Whether the source is cut off.
        truncated: bool = printed.truncated,
    }
}

/// The result of interrupting or ending sessions.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct SessionsChanged {
    /// Number of affected sessions.
    pub sessions: usize,
}

impl CellLimits {
    /// # Errors
    /// [`crate::domain::error::Code::InvalidArgument`], naming the limit.
    pub fn within(&self, server: &Limits) -> Result<Limits, Failure> {
        let Self { wall_ms, output_bytes_max } = *self;
        RunLimits { wall_ms, output_bytes_max, ..RunLimits::default() }.within(server)
    }
}

impl SessionStatus {
    /// The last of a session that its caller ended.
    pub fn ended(view: &SessionView) -> Self {
        Self { state: "ended", status: "stopped", ..view.into() }
    }
}
