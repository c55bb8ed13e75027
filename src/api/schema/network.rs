//! Connections of programs.

use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    domain::{
        network::{NetworkUse, Refusal},
        text::{ms, rfc3339},
    },
    services::network::Decision,
};

/// The outcome of a connection.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ConnectionWord {
    /// The connection was made.
    Allowed,
    /// A policy forbids it.
    Refused,
    /// It is allowed, but the host could not be reached.
    Failed,
}

/// A connection of a program that has ended or was not made.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Connection {
    /// Host and port.
    #[schema(example = "pypi.org:443")]
    pub target: String,
    pub decision: ConnectionWord,
    /// One word for why it was refused or failed.
    #[schema(example = "not_allowed")]
    pub reason: Option<&'static str>,
    /// The reason as a sentence.
    pub message: Option<String>,
    /// Bytes sent to the host.
    pub sent_bytes: u64,
    /// Bytes received from the host.
    pub received_bytes: u64,
    pub ms: u64,
}

/// A connection of one of the caller's conversations.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkDecision {
    /// When it ended (RFC 3339).
    #[schema(format = DateTime)]
    pub at: String,
    pub conversation_id: String,
    pub language: String,
    #[serde(flatten)]
    pub connection: Connection,
}

/// Connections, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct NetworkDecisions {
    pub decisions: Vec<NetworkDecision>,
}

/// A connection of a conversation, with its owner.
#[derive(Debug, Serialize, ToSchema)]
pub struct OwnedDecision {
    pub owner: String,
    #[serde(flatten)]
    pub decision: NetworkDecision,
}

/// Connections of all owners, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct OwnedDecisions {
    pub decisions: Vec<OwnedDecision>,
}

impl From<&NetworkUse> for Connection {
    fn from(used: &NetworkUse) -> Self {
        let refusal = used.refusal.as_ref();
        Self {
            target: used.target.clone(),
            decision: match refusal {
                None => ConnectionWord::Allowed,
                Some(refusal) if refusal.is_forbidden() => ConnectionWord::Refused,
                Some(_) => ConnectionWord::Failed,
            },
            reason: refusal.map(Refusal::word),
            message: refusal.map(ToString::to_string),
            sent_bytes: used.sent_bytes,
            received_bytes: used.received_bytes,
            ms: ms(used.took),
        }
    }
}

impl From<&Decision> for OwnedDecision {
    fn from(decision: &Decision) -> Self {
        Self { owner: decision.conversation.owner.name().to_owned(), decision: decision.into() }
    }
}

impl From<&Decision> for NetworkDecision {
    fn from(decision: &Decision) -> Self {
        Self {
            at: rfc3339(decision.at_unix_ms.div_euclid(1000)),
            conversation_id: decision.conversation.id.to_string(),
            language: decision.language.to_string(),
            connection: (&decision.used).into(),
        }
    }
}
