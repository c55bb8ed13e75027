//! The sessions port: records which sessions are open, so that the next caller learns when a server lost its session.

use async_trait::async_trait;

use super::database::DbResult;
use crate::domain::{ConversationKey, InstanceId, Language, SessionId};

/// A process of a server, which keeps its id when it is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerProcess {
    pub instance: InstanceId,
    /// When it started, which distinguishes it from earlier processes of the server.
    pub started_ms: i64,
}

/// A session that is open, or was when its server ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRecord {
    pub session: SessionId,
    pub conversation: ConversationKey,
    pub language: Language,
    pub opened_ms: i64,
}

#[async_trait]
pub trait SessionStore: Send + Sync {
    /// Records that a session is open in a process, in place of what is recorded under its id.
    async fn record(&self, session: &SessionRecord, by: ServerProcess) -> DbResult<()>;

    /// Removes a session.
    async fn forget(&self, session: SessionId) -> DbResult<()>;

    /// Sessions that earlier processes of this server left: the newest, oldest first.
    async fn left(&self, by: ServerProcess, limit: usize) -> DbResult<Vec<SessionRecord>>;

    /// Removes the sessions of a conversation and a language that are of any other process: those that this call has
    /// removed.
    async fn take(
        &self,
        conversation: &ConversationKey,
        language: &Language,
        by: ServerProcess,
    ) -> DbResult<Vec<SessionRecord>>;

    /// Removes sessions that were opened before this moment.
    async fn forget_before(&self, unix_ms: i64) -> DbResult<()>;
}
