//! Calls of the browser and what they answer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::File;
use crate::{
    domain::{file::Change, id::ConversationId},
    services::{
        browser::{self, Action, Control, Page, PageError, PageLink, Part},
        runs::Report,
    },
};

/// What is read where a call does not say.
const READ: [Part; 3] = [Part::Text, Part::Links, Part::Controls];

/// What to do in the browser.
#[derive(Debug, Default, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Browse {
    /// Whose browser and whose /data. Give the same in every call; without it a new one is made and named in the
    /// answer.
    #[serde(rename = "conversationId")]
    #[schema(value_type = Option<String>, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$", min_length = 1, max_length = 128)]
    pub conversation: Option<ConversationId>,
    /// The address to open, beginning with https:// or http://; default the open page.
    #[schema(example = "https://example.com/")]
    pub url: Option<String>,
    /// Actions on the page, in order. Those before one that fails are not undone.
    #[schema(max_items = 50)]
    pub actions: Option<Vec<Action>>,
    /// What to read then; default text, links and controls.
    #[schema(max_items = 3)]
    pub extract: Option<Vec<Part>>,
    /// Time limit, below the server's.
    #[schemars(range(min = 1))]
    #[schema(minimum = 1)]
    pub timeout_seconds: Option<u64>,
}

/// Arguments of CodeRunner's tool.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NavigateText {
    /// The address, beginning with https:// or http://.
    pub url: String,
}

/// The page after a call. All texts except the notes come from the page.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PageResult {
    /// The id of the call's run.
    pub run_id: String,
    pub conversation_id: String,
    /// The page's address.
    pub url: String,
    pub title: String,
    /// Its HTTP status, where the call went to an address.
    pub status: Option<u16>,
    /// The visible text, frames included.
    pub text: String,
    /// Whether the text is cut off.
    pub text_truncated: bool,
    pub links: Vec<PageLink>,
    /// Number of links that are not listed.
    pub links_more: u64,
    /// What can be clicked, filled in or selected.
    pub controls: Vec<Control>,
    /// Number of controls that are not listed.
    pub controls_more: u64,
    /// What else happened: dialogs, new windows, refused connections.
    pub notes: Vec<String>,
    /// Why not all actions were done.
    pub error: Option<PageError>,
    /// Files in /data that the call made: downloads, screenshots.
    pub files: Vec<File>,
}

impl Browse {
    /// What the service does of it.
    pub fn into_call(self) -> browser::Browse {
        browser::Browse {
            url: self.url,
            actions: self.actions.unwrap_or_default(),
            read: self.extract.unwrap_or_else(|| READ.to_vec()),
            timeout_ms: self.timeout_seconds.map(|seconds| seconds.saturating_mul(1000)),
            ..browser::Browse::default()
        }
    }
}

impl PageResult {
    pub fn new(report: &Report, page: Page) -> Self {
        let made = report.files.files.iter().filter(|file| file.change != Change::Unchanged);
        Self {
            run_id: report.run.to_string(),
            conversation_id: report.conversation.id.to_string(),
            url: page.url,
            title: page.title,
            status: page.status,
            text: page.text,
            text_truncated: page.text_truncated,
            links: page.links,
            links_more: page.links_more,
            controls: page.controls,
            controls_more: page.controls_more,
            notes: page.notes,
            error: page.error,
            files: made.map(File::from).collect(),
        }
    }
}
