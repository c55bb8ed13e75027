//! The browser of a conversation. A call is a cell of its browser session, so what [`super::runs`] says of runs holds.

use axum::{Json, body::Body, extract::State};

use super::{
    V1Parts,
    call::{Call, Query},
};
use crate::{
    api::{
        http::error::ApiError,
        schema::{
            arguments::NoArguments,
            browse::{Browse, PageResult},
            parse::{Source, parse},
        },
    },
    domain::{id::ConversationId, owner::ConversationKey},
    services::{browser, runs::RunRequest},
};

/// Browse.
///
/// Goes to an address in the conversation's browser, acts on the page and reads it. Pages, cookies and fields stay for
/// later calls. A page that fails is an answer with `error`; refused is a call without a browser (422) or without a
/// network policy that holds for it (403).
#[utoipa::path(
    post, path = "/v1/browse", tag = "sessions", operation_id = "browse",
    request_body(content = Browse),
    responses((status = 200, description = "The page.", body = PageResult)),
)]
pub(super) async fn browse(
    State(parts): State<V1Parts>,
    _: Query<NoArguments>,
    call: Call,
    body: Body,
) -> Result<Json<PageResult>, ApiError> {
    parts.runs.check_capacity(&call.who)?;
    let asked: Browse = parse(parts.bodies.json(&call.headers, body).await?.0, Source::Json)?;
    let conversation = asked.conversation.clone().unwrap_or_else(ConversationId::fresh);
    let request = browser::request(&parts.runs, ConversationKey::new(call.who, conversation), &asked.into_call())?;
    let run = parts.runs.begin(RunRequest { detach: Some(false), within: call.trace, ..request })?;
    let report = run.finished().await?;
    Ok(Json(PageResult::new(&report, browser::page(&report))))
}
