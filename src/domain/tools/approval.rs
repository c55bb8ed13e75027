//! Questions to a person whether a call may be made, and their answers.

use serde::{Deserialize, Serialize};

pub use crate::domain::id::ApprovalId;
use crate::domain::{owner::ConversationKey, words::words};

words! {
    /// What a person answered.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema, utoipa::ToSchema)]
    #[serde(rename_all = "lowercase")]
    pub enum Answered: word {
        /// This call, with these arguments, one time.
        Once = "once",
        /// This tool in this conversation, for an hour.
        Session = "session",
        /// This tool, until that is taken back or the tool's definition changes.
        Always = "always",
        No = "no",
    }
}

/// What is asked: exactly one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProposedCall {
    pub conversation: ConversationKey,
    pub server: String,
    pub tool: String,
    /// The hash of the tool's definition.
    pub definition: String,
    /// The canonical text of the arguments, which is what will be sent.
    pub arguments: String,
}

/// A question, and its answer where there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    pub id: ApprovalId,
    pub call: ProposedCall,
    pub asked_unix_ms: i64,
    pub answered: Option<Answered>,
    pub answered_unix_ms: Option<i64>,
    /// Who answered, and by what: `page`, `api`, `client`.
    pub answered_by: Option<String>,
    /// Until when the question can be answered, or the answer holds.
    pub expires_unix_ms: i64,
}

/// Why a call that asks may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    Once(ApprovalId),
    Standing(ApprovalId),
}
