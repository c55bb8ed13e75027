//! What the handlers of all surfaces work with.

use std::sync::Arc;

use axum::extract::FromRef;

use super::body::Bodies;
use crate::{
    domain::limits::Limits,
    services::{
        admin::Admin, check::Checker, containers::Containers, conversations::Conversations, files::Files,
        history::History, idempotency::Idempotency, network::Network, packages::Packages, runs::Runs,
        sessions::Sessions, skills::Skills, tokens::Tokens, tools::Tools,
    },
};

/// The services, and how bodies are read.
#[derive(Clone, FromRef)]
pub struct ApiParts {
    /// Runs programs.
    pub runs: Runs,
    /// Files of conversations.
    pub files: Arc<Files>,
    /// Conversations as wholes.
    pub conversations: Conversations,
    /// Conversations that clients of E2B and OpenAI hold for a time.
    pub containers: Containers,
    /// What was run.
    pub history: Arc<History>,
    /// Which requests began which runs.
    pub keys: Arc<Idempotency>,
    /// Reads request bodies.
    pub bodies: Bodies,
    /// Sandboxes that keep an interpreter.
    pub sessions: Sessions,
    /// What a run may use at most.
    pub limits: Limits,
    pub tokens: Arc<Tokens>,
    /// What operators see and change.
    pub admin: Admin,
    /// The connections of programs.
    pub network: Network,
    /// Installs packages.
    pub packages: Packages,
    pub skills: Skills,
    pub tools: Tools,
    /// Formats programs.
    pub checker: Checker,
}
