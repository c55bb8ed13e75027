//! Calls of the browser and what they answer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::File;
use crate::{
    domain::{file::Change, id::ConversationId},
    services::{
        browser::{self, Action, ActionKind, Page, PageErrorKind, Part},
        runs::Report,
    },
};

/// What is read where a call does not say.
const READ: [Reads; 3] = [Reads::Text, Reads::Links, Reads::Controls];

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
    pub actions: Option<Vec<BrowseAction>>,
    /// What to read then; default text, links and controls.
    #[schema(max_items = 3)]
    pub extract: Option<Vec<Reads>>,
    /// Time limit, below the server's.
    #[schemars(range(min = 1))]
    #[schema(minimum = 1)]
    pub timeout_seconds: Option<u64>,
}

/// One step in the page.
#[derive(Debug, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(inline)]
pub struct BrowseAction {
    pub action: ActionKind,
    /// Of an element, as an answer lists it; or any CSS selector, or text=Sign in. In a frame: the frame's selector,
    /// ` >>> `, the element's.
    pub selector: Option<String>,
    /// Text to fill in or type; the key to press, such as Enter; the option to select.
    pub text: Option<String>,
    /// For scroll, in pixels.
    pub x: Option<u32>,
    /// For scroll, in pixels.
    pub y: Option<u32>,
    /// For wait without a selector: milliseconds.
    pub ms: Option<u64>,
    /// For screenshot: the whole page, not only the visible part.
    pub full_page: Option<bool>,
}

/// A part of a page to read.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Reads {
    Text,
    Links,
    /// Buttons, fields and the like, with selectors.
    Controls,
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
    #[schemars(with = "u16")]
    pub status: Option<u16>,
    /// The visible text, frames included.
    pub text: String,
    /// Whether the text is cut off.
    pub text_truncated: bool,
    pub links: Vec<LinkResult>,
    /// Number of links that are not listed.
    pub links_more: u64,
    /// What can be clicked, filled in or selected.
    pub controls: Vec<ControlResult>,
    /// Number of controls that are not listed.
    pub controls_more: u64,
    /// What else happened: dialogs, new windows, refused connections.
    pub notes: Vec<String>,
    /// Why not all actions were done.
    #[schemars(with = "PageErrorResult")]
    pub error: Option<PageErrorResult>,
    /// Files in /data that the call made: downloads, screenshots.
    pub files: Vec<File>,
}

/// A link of a page.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
#[schemars(inline)]
pub struct LinkResult {
    pub text: String,
    pub url: String,
}

/// An element that can be used.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
#[schemars(inline)]
pub struct ControlResult {
    /// Its role, such as button, link or textbox.
    pub role: String,
    pub name: String,
    /// Its selector, for actions.
    pub selector: String,
    /// Its value; never that of a password field.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub value: Option<String>,
    /// The options that can be selected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// Whether it is disabled.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
}

/// Why an action on a page failed.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
#[schemars(inline)]
pub struct PageErrorResult {
    /// A stable word for programs.
    pub kind: PageErrorKind,
    pub message: String,
}

impl Browse {
    /// What the service does of it.
    pub fn into_call(self) -> browser::Browse {
        let read = self.extract.unwrap_or_else(|| READ.to_vec());
        browser::Browse {
            url: self.url,
            actions: self.actions.into_iter().flatten().map(Action::from).collect(),
            read: read.into_iter().map(Part::from).collect(),
            timeout_ms: self.timeout_seconds.map(|seconds| seconds.saturating_mul(1000)),
            ..browser::Browse::default()
        }
    }
}

impl From<Reads> for Part {
    fn from(reads: Reads) -> Self {
        match reads {
            Reads::Text => Self::Text,
            Reads::Links => Self::Links,
            Reads::Controls => Self::Controls,
        }
    }
}

impl From<BrowseAction> for Action {
    fn from(step: BrowseAction) -> Self {
        Self {
            selector: step.selector,
            text: step.text,
            x: step.x,
            y: step.y,
            ms: step.ms,
            full_page: step.full_page.unwrap_or(false),
            ..Self::new(step.action)
        }
    }
}

impl PageResult {
    pub fn new(report: &Report, page: Page) -> Self {
        let made = report.files.files.iter().filter(|file| file.change != Change::Unchanged);
        let link = |link: browser::PageLink| LinkResult { text: link.text, url: link.url };
        let control = |one: browser::Control| ControlResult {
            role: one.role,
            name: one.name,
            selector: one.selector,
            value: one.value,
            options: one.options,
            disabled: one.disabled,
        };
        Self {
            run_id: report.run.to_string(),
            conversation_id: report.conversation.id.to_string(),
            url: page.url,
            title: page.title,
            status: page.status,
            text: page.text,
            text_truncated: page.text_truncated,
            links: page.links.into_iter().map(link).collect(),
            links_more: page.links_more,
            controls: page.controls.into_iter().map(control).collect(),
            controls_more: page.controls_more,
            notes: page.notes,
            error: page.error.map(|error| PageErrorResult { kind: error.kind, message: error.sentence }),
            files: made.map(File::from).collect(),
        }
    }
}
