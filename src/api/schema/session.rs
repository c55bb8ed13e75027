//! Sessions, as clients see them, and the bodies that open one and run a cell in it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    SessionWord,
    arguments::{Program, Wait},
    create_run::RunLimits,
    rfc3339,
};
use crate::{
    domain::{
        environment::Environment,
        error::Failure,
        id::{ConversationId, Language},
        limits::Limits,
        text::ms,
    },
    services::sessions::SessionView,
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
    #[schemars(with = "Option<BTreeMap<String, String>>")]
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

/// A session.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionStatus {
    /// Its id.
    pub session_id: String,
    /// The same id, under the name that clients of CodeRunner read.
    #[serde(rename = "session_id")]
    pub coderunner_session_id: String,
    /// The conversation whose files are /data.
    pub conversation_id: String,
    /// The language's own name.
    pub language: String,
    /// Its current state.
    #[schemars(extend("enum" = ["idle", "busy", "ended"]))]
    #[schema(value_type = SessionWord)]
    pub state: &'static str,
    /// `active`, or `stopped` when it has ended; for clients of CodeRunner.
    pub status: &'static str,
    /// When it was opened (RFC 3339).
    pub created_at: String,
    /// Time since its last use, in milliseconds.
    pub idle_ms: u64,
    /// Cells that were executed.
    pub cells: u64,
    /// Its memory limit, in bytes.
    pub memory_bytes_max: u64,
}

/// The open sessions.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
pub struct SessionList {
    /// Newest first.
    pub sessions: Vec<SessionStatus>,
}

/// The result of interrupting or ending sessions.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct SessionsChanged {
    /// Number of affected sessions.
    pub sessions: usize,
}

/// The source of an installed module.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ModuleSource {
    /// Its name.
    pub name: String,
    /// The source.
    pub source: String,
    /// Whether the source is cut off.
    pub truncated: bool,
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

impl From<&SessionView> for SessionStatus {
    fn from(view: &SessionView) -> Self {
        Self {
            session_id: view.session.to_string(),
            coderunner_session_id: view.session.to_string(),
            conversation_id: view.conversation.id.to_string(),
            language: view.language.to_string(),
            state: view.state.word(),
            status: "active",
            created_at: rfc3339(view.created_unix_s),
            idle_ms: ms(view.idle),
            cells: view.cells,
            memory_bytes_max: view.memory_bytes_max,
        }
    }
}

impl From<&[SessionView]> for SessionList {
    fn from(all: &[SessionView]) -> Self {
        Self { sessions: all.iter().map(SessionStatus::from).collect() }
    }
}
