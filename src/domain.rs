//! The domain types: identifiers, limits, outcomes, events, time, trace contexts and the list of machine codes.
//!
//! They know nothing of engines, HTTP, files or settings; every other row may use them. What most modules
//! name is named here without its module.

pub mod address;
pub mod clock;
pub mod environment;
pub mod error;
pub mod event;
pub mod file;
pub mod finding;
#[cfg(test)]
pub(crate) mod fuzz_support;
pub mod heartbeats;
pub mod id;
pub mod network;
pub mod outcome;
pub mod owner;
pub mod packages;
pub mod path;
pub mod shared_folder;
pub mod skills;
#[cfg(test)]
pub(crate) mod test_scale;
pub mod text;
pub mod token;
pub mod tools;
pub mod trace;
pub mod users;
pub(crate) mod words;

pub use self::{
    clock::{Clock, Moment, StepWatch},
    environment::{AllowedVariables, Environment},
    error::{Code, Failure},
    event::{DisplayKind, Event, EventKind, StreamKind},
    file::{Change, FileEntry},
    heartbeats::Heartbeats,
    id::{ConversationId, InstanceId, Language, RunId, SandboxId, SessionId, TokenId},
    outcome::{DiskLimit, Ended, Figures, Limits, Outcome},
    owner::{ConversationKey, Principal},
    path::SafePath,
    token::{Grant, Scope, TokenDigest, TokenLimits, TokenRecord},
    trace::TraceContext,
    users::RunnerUsers,
};
