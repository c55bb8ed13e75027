//! The database port: what outlives the process beside files. Callers on the way of a run never wait for it.

use std::time::Duration;

use async_trait::async_trait;
use tokio::{sync::mpsc, time::timeout};

use crate::domain::{
    InstanceId, TokenId, TokenRecord,
    token::AccessRecord,
    tools::{Answered, Approval, ApprovalId, ProposedCall},
};

/// Why the database did not answer: it is away, locked, full or read-only. The text is the driver's, for the log.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the database: {0}")]
pub struct DatabaseError(pub String);

pub type DbResult<T> = Result<T, DatabaseError>;

/// How long a round of what follows the database may wait for an answer.
pub const ROUND_MAX: Duration = Duration::from_secs(30);

/// How long a client's request may wait for an answer: five seconds for a connection, as long for a lock of `SQLite`.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The answer to a call, or an error after this time: where a connection is lost silently, no answer comes.
///
/// # Errors
/// Those of the call.
pub async fn within<T>(max: Duration, call: impl Future<Output = DbResult<T>>) -> DbResult<T> {
    timeout(max, call).await.unwrap_or_else(|_| Err(DatabaseError("it takes too long".to_owned())))
}

/// [`within`] the time that a client's request may wait.
///
/// # Errors
/// Those of the call.
pub async fn in_time<T>(call: impl Future<Output = DbResult<T>>) -> DbResult<T> {
    within(ANSWER_MAX, call).await
}

/// The tokens of all owners.
#[async_trait]
pub trait TokenStore: Send + Sync {
    /// Tokens that were made, changed or revoked at `since` or later, in unix milliseconds; from 0, all of them.
    async fn changed(&self, since: i64) -> DbResult<Vec<TokenRecord>>;

    /// Access tokens that were made at `since` or later, in unix milliseconds; from 0, all of them.
    async fn access(&self, since: i64) -> DbResult<Vec<AccessRecord>>;

    /// Stores a new token.
    async fn insert(&self, token: &TokenRecord) -> DbResult<()>;

    /// Marks a token as revoked, and those that came from it: all of them that can be read; `None` when there is no
    /// such token, or it was revoked before.
    async fn revoke(&self, token: &TokenId, at_unix_ms: i64) -> DbResult<Option<Vec<TokenRecord>>>;

    /// Ends the connections whose parent is neither a token nor the id that stands for the configured one, and answers
    /// them. Before that, those of the ids that stood for it `before` become those of `configured`, and those of its
    /// owner that have no parent, which earlier versions made. `now` is in unix milliseconds.
    async fn bind_connections(&self, configured: &TokenId, before: &[TokenId], now: i64) -> DbResult<Vec<TokenId>>;

    /// Takes the end of a subject of another issuer back; `false` when there is no such subject, or it was not ended.
    async fn restore(&self, subject: &TokenId, at_unix_ms: i64) -> DbResult<bool>;

    /// Stores when tokens were last used, in unix milliseconds.
    async fn used(&self, tokens: &[(TokenId, i64)]) -> DbResult<()>;

    /// What runs of these tokens have used that ended at `since` or within two days after it, in unix milliseconds:
    /// processor time in milliseconds, or the most that it can be, and bytes of output. Without the runs that a server
    /// began since a moment, which it counts itself.
    async fn spent(
        &self,
        tokens: &[TokenId],
        since: i64,
        without: (InstanceId, i64),
    ) -> DbResult<Vec<(TokenId, (u64, u64))>>;

    /// Removes tokens that have been revoked or expired since before this moment.
    async fn forget(&self, before_unix_ms: i64) -> DbResult<()>;
}

/// What operators define while the server runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefinitionKind {
    /// A policy for the network access of programs.
    NetworkPolicy,
    /// A server whose tools programs may call.
    ToolServer,
}

/// A definition that an operator made. It may hold a secret, so it has no `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredDefinition {
    pub name: String,
    /// JSON, which another version may have written.
    pub definition: String,
    /// Of a tool server; a policy has none, and none is kept.
    pub secret: String,
}

/// Definitions that operators made.
#[async_trait]
pub trait DefinitionStore: Send + Sync {
    /// All of a kind, in the order of their names.
    async fn definitions(&self, kind: DefinitionKind) -> DbResult<Vec<StoredDefinition>>;

    /// Stores one, in place of the one of that name.
    async fn put_definition(&self, kind: DefinitionKind, stored: &StoredDefinition, at_unix_ms: i64) -> DbResult<()>;

    /// Removes one; false when there is none.
    async fn remove_definition(&self, kind: DefinitionKind, name: &str) -> DbResult<bool>;
}

/// Questions whether calls of tools may be made, and their answers. Times are unix milliseconds.
#[async_trait]
pub trait ApprovalStore: Send + Sync {
    async fn ask(&self, question: &Approval) -> DbResult<()>;

    /// One of this owner, or of any. Another owner's costs as much as one that never was.
    async fn approval(&self, id: ApprovalId, owner: Option<&str>) -> DbResult<Option<Approval>>;

    /// The newest, of one owner or of all, and as many answers that stand, however old: each can be taken back. With
    /// `open` those alone that wait for an answer.
    async fn approvals(&self, owner: Option<&str>, open: bool, now: i64, limit: u32) -> DbResult<Vec<Approval>>;

    /// How many questions of an owner wait for an answer.
    async fn open_questions(&self, owner: &str, now: i64) -> DbResult<u64>;

    /// Answers a question that waits for an answer: `false` where it does not wait any more.
    async fn answer(&self, id: ApprovalId, answer: Answered, by: &str, now: i64, expires: i64) -> DbResult<bool>;

    /// An answer that allows this call now. One that allows one call is used up by this: of two callers one gets it.
    async fn take_grant(&self, call: &ProposedCall, now: i64) -> DbResult<Option<ApprovalId>>;

    /// Takes back an answer that stands, or a question: `false` where there is none that does.
    async fn revoke(&self, id: ApprovalId, now: i64) -> DbResult<bool>;

    /// Removes what has expired before this moment.
    async fn forget_approvals(&self, before: i64) -> DbResult<()>;
}

/// A row of a table: its columns that are not NULL, as texts and whole numbers.
pub type DumpedRow = serde_json::Map<String, serde_json::Value>;

/// What [`DumpStore::load`] is given.
#[derive(Debug)]
pub enum Loading {
    Row {
        table: String,
        row: DumpedRow,
    },
    /// Without it nothing is stored.
    End,
}

/// Whether a database can take a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DumpState {
    /// The newest version of the tables; 0 without any.
    pub version: i64,
    pub is_empty: bool,
}

/// Everything in the database, for a backup.
#[async_trait]
pub trait DumpStore: Send + Sync {
    /// The names of the tables that a backup has, in the order in which they are dumped.
    fn tables(&self) -> &'static [&'static str];

    /// The version of the tables that this server makes.
    fn version(&self) -> i64;

    /// Whether it has tables and rows; makes none.
    async fn state(&self) -> DbResult<DumpState>;

    /// Sends every row as of one moment, while others write; ends early when they are not taken.
    async fn dump(&self, rows: mpsc::Sender<(&'static str, DumpedRow)>) -> DbResult<()>;

    /// Stores rows of tables of this version, all or none; with `replace` in place of what is there. Then brings the
    /// tables to the version of this server.
    async fn load(&self, version: i64, replace: bool, rows: mpsc::Receiver<Loading>) -> DbResult<()>;
}
