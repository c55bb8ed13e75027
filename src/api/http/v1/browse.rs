//! The browser of a conversation. A call is a cell of its browser session, so what [`super::runs`] says of runs holds.

use axum::Json;

use super::{ApiParts, call::Call};
use crate::{
    api::{
        http::{Answer, body::RequestBody},
        schema::browse::{Browse, PageResult},
    },
    domain::{id::ConversationId, owner::ConversationKey},
    services::{browser, runs::RunRequest},
};

/// Browse.
///
/// Goes to an address in the conversation's browser, acts on the page and reads it. Pages, cookies and fields stay for
/// later calls. A page that fails is an answer with `error`. A call is refused where there is no browser (422) or no
/// network policy allows it (403).
#[utoipa::path(
    post, path = "/v1/browse", tag = "sessions", operation_id = "browse",
    request_body(content = Browse),
    responses((status = 200, description = "The page.", body = PageResult)),
)]
pub(super) async fn browse(parts: ApiParts, call: Call, body: RequestBody) -> Answer<PageResult> {
    parts.runs.check_capacity(&call.who)?;
    let asked: Browse = body.json().await?;
    let conversation = asked.conversation.clone().unwrap_or_else(ConversationId::fresh);
    let request = browser::request(&parts.runs, ConversationKey::new(call.who, conversation), &asked.into_call())?;
    let run = parts.runs.begin(RunRequest { detach: Some(false), within: call.trace, ..request })?;
    let report = run.finished().await?;
    Ok(Json(PageResult::new(&report, browser::page(&report))))
}
