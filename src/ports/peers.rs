//! The servers that share a database and a folder of conversations, and which of them has which conversation.

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use super::database::DbResult;
use crate::domain::{ConversationKey, InstanceId};

/// A server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub instance: InstanceId,
    /// Where the others reach it, such as `http://10.0.0.7:8080`.
    pub url: String,
}

#[async_trait]
pub trait PeerStore: Send + Sync {
    /// Shows the others that a server lives: its beat differs from the one before.
    async fn announce(&self, me: &Peer, beat: i64) -> DbResult<()>;

    /// All servers, and their beats.
    async fn peers(&self) -> DbResult<Vec<(Peer, i64)>>;

    /// Gives a conversation to a server, unless another has it that is in the table of servers and is not one of `dead`
    /// with the same beat. Which server has it then. A stamp that this server has there is only raised, so of several
    /// statements at once the highest one stays.
    async fn take(
        &self,
        conversation: &ConversationKey,
        by: InstanceId,
        stamp: i64,
        dead: &[(InstanceId, i64)],
    ) -> DbResult<InstanceId>;

    /// Takes back a conversation that a server was given with this stamp.
    async fn give_back(&self, conversation: &ConversationKey, by: InstanceId, stamp: i64) -> DbResult<()>;

    /// Takes back all that a server has, and forgets it.
    async fn leave(&self, instance: InstanceId) -> DbResult<()>;

    /// The same for another server, unless its beat is no longer this one.
    async fn forget(&self, instance: InstanceId, beat: i64) -> DbResult<()>;
}

/// The longest text of [`Notices`], in bytes: one less than `PostgreSQL` refuses.
pub const NOTICE_BYTES_MAX: usize = 7999;

/// Short texts from each server to all, itself included. A server that does not listen misses them.
#[async_trait]
pub trait Notices: Send + Sync {
    async fn send(&self, text: &str) -> DbResult<()>;

    /// The texts from now on, in the order in which they were sent, until the connection is lost.
    async fn listen(&self) -> DbResult<BoxStream<'static, String>>;
}
