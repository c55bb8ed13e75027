//! Calls of the browser and what they answer.

use schemars::JsonSchema;
use serde::Deserialize;
use utoipa::ToSchema;

use super::{File, answers};
use crate::{
    domain::ConversationId,
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

answers! {
    /// The page after a call. All texts come from the page, also what notes quote.
    #[derive(JsonSchema)]
    pub struct PageResult((report, page): (&Report, Page)) {
        /// The id of the call's run.
        run_id: String = report.run.to_string(),
        conversation_id: String = report.conversation.id.to_string(),
        /// The page's address.
        url: String = page.url,
        title: String = page.title,
        /// Its HTTP status, where the call went to an address.
        status: Option<u16> = page.status,
        /// The visible text, frames included.
        text: String = page.text,
        /// Whether the text is cut off.
        text_truncated: bool = page.text_truncated,
        links: Vec<PageLink> = page.links,
        /// Number of links that are not listed.
        links_more: u64 = page.links_more,
        /// What can be clicked, filled in or selected.
        controls: Vec<Control> = page.controls,
        /// Number of controls that are not listed.
        controls_more: u64 = page.controls_more,
        /// What else happened: dialogs, new windows, refused connections.
        notes: Vec<String> = page.notes,
        /// Why not all actions were done.
        error: Option<PageError> = page.error,
        /// Files in /data that the call made: downloads, screenshots.
        files: Vec<File> = report.files.made().map(File::from).collect(),
    }
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
