//! Browser calls: one call is one cell of the conversation's browser session, whose answer is one line of JSON.
//!
//! Owns the request, its preconditions, and the parsing of the answer. The session, its turns, its deadline, its
//! network and its end are those of every cell, so a call is executed once. The answer comes from a sandbox in which
//! pages and cells run: it is bounded by the run's output limit, parsed strictly, and marked as untrusted text. Knows
//! no surface and no Chromium: the driver in the runner image does.

mod answer;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

pub use self::answer::{Anchor, Control, Extracted, Page, PageError, PageErrorKind, PageLink};
use super::runs::{CellSession, Report, RunRequest, Runs};
use crate::domain::{Code, ConversationKey, Ended, Failure, Language, Principal};

/// The language of the runner that has the browser.
const LANGUAGE: &str = "browser";
/// The readable text of one page, in bytes.
const TEXT_BYTES_MAX: usize = 48 << 10;
/// The answer, in bytes; text beyond half of it gives way, then lists.
const ANSWER_BYTES_MAX: u64 = 96 << 10;
/// Links, controls or anchors of one answer.
pub const ITEMS_MAX: usize = 200;
pub const ACTIONS_MAX: usize = 50;
const URL_BYTES_MAX: usize = 8 << 10;
const SELECTOR_BYTES_MAX: usize = 2 << 10;
const TIMEOUT_MS_MIN: u64 = 1000;
/// The time for reading, at most.
const READ_MS_MAX: u64 = 6000;
/// Notes of one answer, and the bytes of each.
const NOTES_MAX: usize = 40;
const NOTE_BYTES_MAX: usize = 500;

/// What to do in the browser, in this order: go to an address, act, read.
#[derive(Debug, Clone, Default)]
pub struct Browse {
    /// With `http://` or `https://`; otherwise the page that is open.
    pub url: Option<String>,
    pub actions: Vec<Action>,
    pub read: Vec<Part>,
    /// The elements that a selector matches.
    pub query: Option<Query>,
    /// Width and height, in pixels.
    pub viewport: Option<(u32, u32)>,
    /// For all of it but reading; at most two thirds of the time that a cell has.
    pub timeout_ms: Option<u64>,
    /// `None`: that of the conversation, opened where there is none.
    pub session: Option<CellSession>,
}

/// A part of a page to read.
// What describes a variant makes a `oneOf` of the schema, which some APIs of models refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
#[schema(as = Reads)]
pub enum Part {
    Text,
    Links,
    // Buttons, fields and the like, with selectors.
    Controls,
    // Pieces of text with selectors, for CodeRunner's clients alone.
    #[serde(skip_deserializing)]
    Anchors,
}

#[derive(Debug, Clone, Serialize)]
pub struct Query {
    pub selector: String,
    pub attributes: Option<Vec<String>>,
}

/// What a step does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
#[schema(as = Does)]
pub enum ActionKind {
    #[default]
    Click,
    Fill,
    Type,
    Press,
    Select,
    Scroll,
    Wait,
    Back,
    Screenshot,
}

/// One step in the page.
// Which members it has depends on its kind: `Action::check`. Those that are not read are for CodeRunner's clients.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(inline)]
#[schema(as = BrowseAction)]
pub struct Action {
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
    /// What a wait is for: of an element or of the page.
    #[serde(skip_deserializing)]
    pub state: Option<String>,
    #[serde(skip_deserializing)]
    pub force: bool,
    #[serde(skip_deserializing)]
    pub delay_ms: Option<u64>,
}

impl Action {
    pub fn new(action: ActionKind) -> Self {
        Self { action, ..Self::default() }
    }

    /// Whether it has what its kind needs, and nothing that its kind does not use; `name` is where it stands.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`], naming the member.
    fn check(&self, name: &str) -> Result<(), Failure> {
        use ActionKind::{Back, Click, Fill, Press, Screenshot, Scroll, Select, Type, Wait};
        let wrong = |member: &str, why: &str| Err(Failure::argument(&format!("{name}.{member}"), why));
        let kind = self.action;
        let aims = matches!(kind, Click | Fill | Type | Select);
        let writes = matches!(kind, Fill | Type | Press | Select);
        for (member, is_there, needed, used) in [
            ("selector", self.selector.is_some(), aims, !matches!(kind, Back | Screenshot)),
            ("text", self.text.is_some(), writes, writes),
            ("x", self.x.is_some(), false, kind == Scroll),
            ("y", self.y.is_some(), false, kind == Scroll),
            ("ms", self.ms.is_some(), false, kind == Wait),
            ("fullPage", self.full_page == Some(true), false, kind == Screenshot),
        ] {
            if needed && !is_there {
                return wrong(member, "it is missing: give it");
            }
            if is_there && !used {
                return wrong(member, "this action takes none: leave it out");
            }
        }
        let is_unusable = |selector: &String| selector.trim().is_empty() || selector.len() > SELECTOR_BYTES_MAX;
        if self.selector.as_ref().is_some_and(is_unusable) {
            let why = "it is empty or too long: give a CSS selector, or `text=` and what the element shows";
            return wrong("selector", why);
        }
        match kind {
            Scroll if self.selector.is_none() && self.x.is_none() && self.y.is_none() => {
                wrong("selector", "it is missing: give it, or x and y in pixels")
            }
            Wait if self.selector.is_none() && self.ms.is_none() && self.state.is_none() => {
                wrong("selector", "it is missing: give it, or ms")
            }
            _ => Ok(()),
        }
    }
}

/// The language of browser sessions.
///
/// # Errors
/// None; its text is valid.
pub fn language() -> Result<Language, Failure> {
    LANGUAGE.parse().map_err(|why| Failure::argument("language", why))
}

/// Whether sessions and runners of a language are a browser's.
pub fn is_browser(language: &Language) -> bool {
    language.as_str() == LANGUAGE
}

/// Whether this caller can browse: before any browser is started.
///
/// # Errors
/// [`Code::RunnerNotFound`] without the image, [`Code::Forbidden`] without a policy that holds.
pub fn check(runs: &Runs, who: &Principal) -> Result<(), Failure> {
    let language = language()?;
    if !runs.offers_sessions(&language) {
        let why = "There is no browser here: the operator builds its image with `./build.sh runners browser`.";
        return Err(Failure::new(Code::RunnerNotFound, why));
    }
    if runs.network().names(who, &language).is_empty() {
        let why = "No network policy holds for the browser: the operator names the hosts that it may reach in a table \
                   [network.<name>] of sandbox.toml (docs/network.md).";
        return Err(Failure::new(Code::Forbidden, why));
    }
    Ok(())
}

/// The cell that makes a call; its report is read by [`page`].
///
/// # Errors
/// Those of [`check`]; [`Code::InvalidArgument`] for what breaks a rule.
pub fn request(runs: &Runs, conversation: ConversationKey, browse: &Browse) -> Result<RunRequest, Failure> {
    check(runs, &conversation.owner)?;
    if let Some(url) = &browse.url {
        let scheme = url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
        if !matches!(scheme.as_deref(), Some("http" | "https")) || url.len() > URL_BYTES_MAX {
            return Err(Failure::argument("url", "give a whole address that begins with https:// or http://"));
        }
    }
    if browse.actions.len() > ACTIONS_MAX {
        return Err(Failure::argument("actions", format!("at most {ACTIONS_MAX} in a call: make several calls")));
    }
    for (at, action) in browse.actions.iter().enumerate() {
        action.check(&format!("actions[{at}]"))?;
    }
    let limits = runs.limits();
    let time_ms_max = (limits.wall_ms / 3 * 2).max(TIMEOUT_MS_MIN);
    let timeout_ms = browse.timeout_ms.unwrap_or(time_ms_max).clamp(TIMEOUT_MS_MIN, time_ms_max);
    let question = json!({
        "url": browse.url,
        "actions": browse.actions,
        "read": browse.read,
        "query": browse.query,
        "viewport": browse.viewport.map(|(width, height)| json!({"width": width, "height": height})),
        "timeoutMs": timeout_ms,
        // What is left of a cell's time ends what does not answer.
        "readMs": (limits.wall_ms / 5).min(READ_MS_MAX),
        "textBytesMax": TEXT_BYTES_MAX,
        "itemsMax": ITEMS_MAX,
        "answerBytesMax": (limits.output_kept_bytes / 2).min(ANSWER_BYTES_MAX),
    });
    // A JSON string is a string of Python too: its escapes mean the same there.
    let quoted = serde_json::Value::String(question.to_string());
    let cell = format!("await __import__(\"sandbox_browser\").answer({quoted})");
    let session = Some(browse.session.unwrap_or(CellSession::Any));
    Ok(RunRequest { session, ..RunRequest::new(conversation, language()?, cell.into()) })
}

/// The answer in the output of a call: its last line. Cells can print another one than the driver, but none that is
/// longer than was asked for.
fn answered(stdout: &str) -> Option<Page> {
    let line = stdout.lines().rev().find(|line| !line.trim().is_empty())?;
    if line.len() as u64 > ANSWER_BYTES_MAX {
        return None;
    }
    let mut page: Page = serde_json::from_str(line).ok()?;
    // They quote what pages say. Brackets are around remarks of the server.
    for note in &mut page.notes {
        *note = note.replace('[', "(").replace(']', ")");
    }
    Some(page)
}

/// What came of a call.
pub fn page(report: &Report) -> Page {
    let ended = report.outcome.ended;
    let answer = answered(&report.stdout.text).filter(|_| ended == Ended::Exited { code: 0 });
    let mut page = answer.unwrap_or_else(|| {
        let kind = if ended == Ended::TimedOut { PageErrorKind::Timeout } else { PageErrorKind::Failed };
        let message = format!("The browser did not answer. {}", report.outcome.sentence());
        Page { error: Some(PageError { kind, message }), ..Page::default() }
    });
    // Refused connections of the page, and notices about its session.
    let notices = report.stderr.text.lines().map(str::trim).filter(|line| !line.is_empty());
    page.notes.extend(notices.map(|line| line.trim_matches(['[', ']']).to_owned()));
    page.notes.truncate(NOTES_MAX);
    for note in &mut page.notes {
        note.truncate(note.floor_char_boundary(NOTE_BYTES_MAX));
    }
    page
}

#[cfg(test)]
mod tests;
