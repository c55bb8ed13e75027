//! The browser under the names that CodeRunner and its vendor's SDK have for it.
//!
//! A `session_id` is that of any session of the caller and stands for its conversation; without one, calls share a
//! conversation of their own. A page that was not reached is an answer with `status: error`, as in CodeRunner; a
//! missing element is 404 and a timeout 408, which the SDK distinguishes.

use std::sync::Arc;

use axum::{
    Json,
    extract::{FromRequest, FromRequestParts as _, Request},
    http::StatusCode,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    ApiParts,
    sessions::{closed, session},
};
use crate::{
    api::{
        http::{Answer, ApiCall, ApiError, Path, RequestBody, parts::check_rules},
        schema::session::SessionStatus,
    },
    domain::{Change, Code, ConversationId, Failure},
    services::{
        browser::{self, Action, ActionKind, Browse, ITEMS_MAX, Page, PageError, PageErrorKind, Part, Query},
        runs::{CellSession, Report},
    },
};

/// The conversation of calls that name no session.
const SHARED: &str = "coderunner-browser";
/// The largest picture in an answer, in bytes; a larger one is a file of the conversation.
const PICTURE_BYTES_MAX: u64 = 8 << 20;
/// Width and height of a window, in pixels.
const VIEWPORT_PIXELS: std::ops::RangeInclusive<u32> = 100..=4000;
const ANCHORS_DEFAULT: usize = 50;
const PAGE_STATES: [&str; 3] = ["load", "domcontentloaded", "networkidle"];
const ELEMENT_STATES: [&str; 4] = ["visible", "hidden", "attached", "detached"];

/// The members of all of these requests; those of others are ignored, as CodeRunner does.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct BrowserRequest {
    url: Option<String>,
    session_id: Option<String>,
    /// Milliseconds.
    wait_timeout: Option<u64>,
    /// Milliseconds.
    timeout: Option<u64>,
    include_interactive: Option<bool>,
    include_anchors: Option<bool>,
    max_anchors: Option<u64>,
    selector: Option<String>,
    text: Option<String>,
    value: Option<String>,
    force: Option<bool>,
    /// Milliseconds between keys.
    delay: Option<u64>,
    x: Option<u32>,
    y: Option<u32>,
    condition: Option<String>,
    full_page: Option<bool>,
    format: Option<String>,
    clip: Option<Value>,
    attributes: Option<Vec<String>>,
    viewport_width: Option<u32>,
    viewport_height: Option<u32>,
    user_agent: Option<String>,
}

/// The caller and its request.
pub(super) struct BrowserCall {
    api: ApiCall,
    asked: BrowserRequest,
}

impl FromRequest<ApiParts> for BrowserCall {
    type Rejection = ApiError;

    async fn from_request(request: Request, parts: &ApiParts) -> Result<Self, ApiError> {
        let (mut head, body) = request.into_parts();
        let api = ApiCall::from_request_parts(&mut head, parts).await?;
        browser::check(&parts.runs, &api.who).map_err(|failure| {
            let is_missing = failure.code == Code::RunnerNotFound;
            ApiError { status: is_missing.then_some(StatusCode::NOT_IMPLEMENTED), ..ApiError::from(failure) }
        })?;
        parts.runs.check_capacity(&api.who)?;
        let Ok(body) = RequestBody::from_request(Request::from_parts(head, body), parts).await;
        Ok(Self { api, asked: body.lenient().await? })
    }
}

impl BrowserCall {
    async fn browse(&self, browse: Browse) -> Result<(Arc<Report>, Page), Failure> {
        let (conversation, session) = if let Some(id) = &self.asked.session_id {
            let session = session(&self.api, id)?;
            let open = browser::is_browser(&session.language).then_some(CellSession::Open(session.session));
            (session.conversation.id, open)
        } else {
            (SHARED.parse::<ConversationId>().map_err(|why| Failure::argument("session_id", why))?, None)
        };
        let timeout_ms = self.asked.timeout.or(self.asked.wait_timeout);
        let browse = Browse { timeout_ms, session, ..browse };
        let request = browser::request(&self.api.parts.runs, self.api.key(conversation), &browse)?;
        let report = self.api.finished(request).await?;
        let page = browser::page(&report);
        Ok((report, page))
    }

    async fn act(&self, action: Action) -> Answer<Value> {
        let (_, page) = self.browse(Browse { actions: vec![action], ..Browse::default() }).await?;
        done(&page)?;
        Ok(Json(json!({"status": "success", "url": page.url, "title": page.title})))
    }
}

/// A page that did not do it.
fn done(page: &Page) -> Result<(), ApiError> {
    let Some(PageError { kind, message }) = &page.error else { return Ok(()) };
    let status = match kind {
        PageErrorKind::NotFound => StatusCode::NOT_FOUND,
        PageErrorKind::Timeout => StatusCode::REQUEST_TIMEOUT,
        _ => StatusCode::UNPROCESSABLE_ENTITY,
    };
    Err(ApiError { status: Some(status), ..ApiError::new(Code::InvalidArgument, message.clone()) })
}

fn needed(value: Option<&String>, name: &str) -> Result<String, Failure> {
    value.filter(|text| !text.is_empty()).cloned().ok_or_else(|| Failure::argument(name, "it is missing: give it"))
}

/// Goes to an address and reads the page.
pub(super) async fn navigate(call: BrowserCall) -> Answer<Value> {
    let url = Some(needed(call.asked.url.as_ref(), "url")?);
    let (_, page) = call.browse(Browse { url, read: vec![Part::Text], ..Browse::default() }).await?;
    let read = || json!({"status": "success", "url": page.url, "title": page.title, "content": page.text});
    Ok(Json(unreached(&page)?.unwrap_or_else(read)))
}

/// Reads a page, or the one that is open.
pub(super) async fn content(call: BrowserCall) -> Answer<Value> {
    let BrowserRequest { url, include_interactive, include_anchors, max_anchors, .. } = &call.asked;
    let mut read = vec![Part::Text];
    read.extend(include_interactive.unwrap_or(true).then_some(Part::Controls));
    read.extend(include_anchors.unwrap_or(true).then_some(Part::Anchors));
    let anchors_max = max_anchors.map_or(ANCHORS_DEFAULT, |max| usize::try_from(max).unwrap_or(ITEMS_MAX));
    let (_, page) = call.browse(Browse { url: url.clone(), read, ..Browse::default() }).await?;
    Ok(Json(unreached(&page)?.unwrap_or_else(|| content_of(&page, anchors_max))))
}

pub(super) async fn click(call: BrowserCall) -> Answer<Value> {
    let selector = Some(needed(call.asked.selector.as_ref(), "selector")?);
    let force = call.asked.force.unwrap_or(false);
    call.act(Action { selector, force, ..Action::new(ActionKind::Click) }).await
}

/// Types text key by key.
pub(super) async fn type_text(call: BrowserCall) -> Answer<Value> {
    let selector = Some(needed(call.asked.selector.as_ref(), "selector")?);
    let (text, delay_ms) = (Some(call.asked.text.clone().unwrap_or_default()), call.asked.delay);
    call.act(Action { selector, text, delay_ms, ..Action::new(ActionKind::Type) }).await
}

pub(super) async fn fill(call: BrowserCall) -> Answer<Value> {
    let selector = Some(needed(call.asked.selector.as_ref(), "selector")?);
    let text = Some(call.asked.value.clone().unwrap_or_default());
    call.act(Action { selector, text, ..Action::new(ActionKind::Fill) }).await
}

pub(super) async fn scroll(call: BrowserCall) -> Answer<Value> {
    let BrowserRequest { selector, x, y, .. } = &call.asked;
    call.act(Action { selector: selector.clone(), x: *x, y: *y, ..Action::new(ActionKind::Scroll) }).await
}

/// Waits for a state of an element or of the page.
pub(super) async fn wait(call: BrowserCall) -> Answer<Value> {
    let BrowserRequest { selector, condition, .. } = &call.asked;
    let known = if selector.is_some() { &ELEMENT_STATES[..] } else { &PAGE_STATES[..] };
    let state = condition.clone().unwrap_or_else(|| known[0].to_owned());
    if !known.contains(&state.as_str()) {
        let (element, page) = (ELEMENT_STATES.join(", "), PAGE_STATES.join(", "));
        let why = format!("with a selector it is one of {element}, without one of {page}");
        return Err(Failure::argument("condition", why).into());
    }
    call.act(Action { selector: selector.clone(), state: Some(state), ..Action::new(ActionKind::Wait) }).await
}

/// The page as a picture, in base64.
pub(super) async fn screenshot(call: BrowserCall) -> Answer<Value> {
    let format = call.asked.format.as_deref().unwrap_or("png");
    check_rules([
        ("format", format != "png", "pictures here are `png`"),
        ("clip", call.asked.clip.is_some(), "a part of the page cannot be chosen: leave it out"),
    ])?;
    let full_page = Some(call.asked.full_page.unwrap_or(true));
    let action = Action { full_page, ..Action::new(ActionKind::Screenshot) };
    let (report, page) = call.browse(Browse { actions: vec![action], ..Browse::default() }).await?;
    done(&page)?;
    let mut made = report.files.files.iter().filter(|file| file.change == Change::Created);
    let why = "The picture was not stored: see which files the conversation has.";
    let none = || Failure::new(Code::FileNotFound, why);
    let file = made.find(|file| file.media_type() == "image/png").ok_or_else(none)?;
    let read = call.api.parts.files.read(&report.conversation, &file.path, 0, PICTURE_BYTES_MAX).await?;
    let read = read.whole(format!("The picture has more than {PICTURE_BYTES_MAX} bytes: download it as a file."))?;
    Ok(Json(json!({"status": "success", "format": format, "screenshot": BASE64_STANDARD.encode(&read.bytes)})))
}

/// The elements that a selector matches.
pub(super) async fn extract(call: BrowserCall) -> Answer<Value> {
    let selector = call.asked.selector.clone().unwrap_or_else(|| "body".to_owned());
    let query = Some(Query { selector, attributes: call.asked.attributes.clone() });
    let (_, page) = call.browse(Browse { query, ..Browse::default() }).await?;
    done(&page)?;
    Ok(Json(json!({"status": "success", "elements": page.extracted, "more": page.extracted_more})))
}

/// Opens a browser in a conversation of its own.
pub(super) async fn open(call: BrowserCall) -> Answer<Value> {
    let BrowserRequest { viewport_width, viewport_height, user_agent, .. } = &call.asked;
    let is_outside = |pixels: Option<u32>| pixels.is_some_and(|pixels| !VIEWPORT_PIXELS.contains(&pixels));
    let viewport = viewport_width.zip(*viewport_height);
    let (no_width, no_height) = (viewport_width.is_none(), viewport_height.is_none());
    check_rules([
        ("user_agent", user_agent.is_some(), "it cannot be chosen: leave it out"),
        ("viewport_width", is_outside(*viewport_width), "it must be 100 to 4000 pixels"),
        ("viewport_height", is_outside(*viewport_height), "it must be 100 to 4000 pixels"),
        ("viewport_width", no_width && !no_height, "it is missing: give both dimensions or neither"),
        ("viewport_height", no_height && !no_width, "it is missing: give both dimensions or neither"),
    ])?;
    let conversation = call.api.key(ConversationId::fresh());
    let opened = call.api.parts.sessions.open(&conversation, &browser::language()?).await?;
    if viewport.is_some() {
        let session_id = Some(opened.session.to_string());
        let call = BrowserCall { asked: BrowserRequest { session_id, ..BrowserRequest::default() }, ..call };
        let browsed = call.browse(Browse { viewport, ..Browse::default() }).await;
        if let Err(error) = browsed.map_err(ApiError::from).and_then(|(_, page)| done(&page)) {
            // The caller does not get its id. It may have ended by itself.
            let _ = call.api.parts.sessions.close(&call.api.who, opened.session);
            return Err(error);
        }
    }
    Ok(Json(json!(SessionStatus::from(&opened))))
}

/// The answer for a page that was not reached; time that is over is a refusal.
fn unreached(page: &Page) -> Result<Option<Value>, ApiError> {
    match &page.error {
        None => Ok(None),
        Some(error) if error.kind == PageErrorKind::Timeout => done(page).map(|()| None),
        Some(error) => {
            let why = [std::slice::from_ref(&error.message), page.notes.as_slice()].concat().join(" ");
            Ok(Some(json!({"status": "error", "error": why, "url": page.url})))
        }
    }
}

fn content_of(page: &Page, anchors_max: usize) -> Value {
    let controls = page.controls.iter().map(|control| {
        json!({"type": control.role, "text": control.name, "selector": control.selector, "value": control.value})
    });
    let anchors = page.anchors.iter().take(anchors_max);
    let anchors = anchors.map(|anchor| json!({"text": anchor.text, "selector": anchor.selector}));
    json!({
        "status": "success",
        "url": page.url,
        "title": page.title,
        "readable_content": {"title": page.title, "url": page.url, "content": page.text},
        "interactive_elements": controls.collect::<Vec<_>>(),
        "content_anchors": anchors.collect::<Vec<_>>(),
    })
}

/// The caller's open browsers.
pub(super) async fn list(call: ApiCall) -> Json<Value> {
    let all = call.parts.sessions.list(&call.who, None);
    let browsers = all.iter().filter(|session| browser::is_browser(&session.language));
    Json(json!({"sessions": browsers.map(SessionStatus::from).collect::<Vec<_>>()}))
}

/// Closes a browser.
pub(super) async fn close(call: ApiCall, Path(id): Path<String>) -> Answer<SessionStatus> {
    closed(&call, Some(&id))
}
