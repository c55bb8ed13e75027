//! The wire format, shared by every surface: one struct for each request, answer and file, from which its parser, its
//! JSON Schema and its documents are derived. Names are camel case, and a change of one is a change of the public
//! contract.
//!
//! Knows no protocol: neither JSON-RPC nor HTTP nor content blocks.

pub mod arguments;
pub mod create_run;
mod file;
pub mod json_schema;
pub mod parse;
pub mod report;
mod result;
pub mod run;

use schemars::JsonSchema;
use serde::Serialize;
use utoipa::ToSchema;

pub use file::{File, FileListing, FileResult, ImportResult, SkippedResult};
pub use result::{FiguresResult, OutcomeResult, RunResult};

use crate::{
    domain::{error::Code, id::RequestId, text::rfc3339},
    ports::runner::Runner,
    services::{
        conversations::{ConversationPage, LastUse},
        runs::Runs,
    },
};

/// The languages that can be run now.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
pub struct RunnerList {
    /// Ordered by language.
    pub runners: Vec<RunnerResult>,
}

/// One language.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunnerResult {
    /// What to give as `language`.
    pub language: String,
    /// Other names that are accepted.
    pub aliases: Vec<String>,
    /// The language's version.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    #[schema(nullable = false)]
    pub version: Option<String>,
    /// What is installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    #[schema(nullable = false)]
    pub description: Option<String>,
    /// The container image.
    pub image: String,
    /// Whether a run in `/v1` may have arguments and input, also while it goes on.
    pub takes_input: bool,
    /// How many sandboxes stand by for it, started and loaded.
    pub standing_by: usize,
}

/// A file is gone.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
pub struct Deleted {
    /// Always true.
    pub deleted: bool,
}

/// A page of conversations.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ConversationList {
    /// In the order of their names.
    pub conversations: Vec<ConversationResult>,
    /// Give it as `after` for the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub after: Option<String>,
}

/// A conversation.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConversationResult {
    /// Its name.
    pub conversation_id: String,
    /// When a run last began in it, or something came or went at the top of its folder (RFC 3339).
    pub used_at: String,
}

/// An error of ours; a program that fails is a result.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
pub struct ErrorResult {
    /// What went wrong.
    pub error: ErrorBody,
}

/// What went wrong.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ErrorBody {
    /// A stable word for programs.
    pub code: &'static str,
    /// One sentence that says what to do.
    pub message: String,
    /// Names the request in the server's log.
    pub request_id: String,
}

impl RunnerResult {
    /// A runner, and how many sandboxes stand by for it.
    pub fn new(runner: &Runner, standing_by: usize) -> Self {
        Self {
            language: runner.language.to_string(),
            aliases: runner.aliases.iter().map(ToString::to_string).collect(),
            version: runner.version.clone(),
            description: runner.description.clone(),
            image: runner.reference.clone().unwrap_or_else(|| runner.image.0.clone()),
            takes_input: runner.takes_input(),
            standing_by,
        }
    }
}

impl From<&Runs> for RunnerList {
    fn from(runs: &Runs) -> Self {
        let one = |runner: &Runner| RunnerResult::new(runner, runs.standing_by(runner));
        Self { runners: runs.runners().iter().map(one).collect() }
    }
}

impl From<&ConversationPage> for ConversationList {
    fn from(page: &ConversationPage) -> Self {
        let one = |known: &LastUse| ConversationResult {
            conversation_id: known.key.id.to_string(),
            used_at: rfc3339(known.unix_s),
        };
        Self {
            conversations: page.conversations.iter().map(one).collect(),
            after: page.after.as_ref().map(ToString::to_string),
        }
    }
}

impl ErrorResult {
    pub fn new(code: Code, message: String, request: RequestId) -> Self {
        Self { error: ErrorBody { code: code.as_str(), message, request_id: request.to_string() } }
    }
}
