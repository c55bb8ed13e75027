//! Programs: in a session, where variables stay, or as separate runs; synchronously, or started and polled.

use axum::Json;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    answer::{Executed, task},
    sessions::named,
};
use crate::{
    api::{
        http::{
            Answer,
            body::RequestBody,
            parts::{ApiCall, Path},
        },
        schema::parse,
    },
    domain::{
        error::{Code, Failure},
        id::{ConversationId, Language, RunId},
    },
    services::runs::{CellSession, RunHandle, RunRequest},
};

#[derive(Deserialize, JsonSchema)]
struct Execute {
    code: Option<String>,
    command: Option<String>,
    session_id: Option<String>,
    language: Option<Language>,
    /// Seconds.
    timeout: Option<f64>,
}

/// Runs a program and waits for its end. One that fails is a result.
pub(super) async fn execute(call: ApiCall, body: RequestBody) -> Answer<Executed> {
    let run = start(&call, body).await?;
    let report = run.finished().await?;
    Ok(Json(Executed::from(&*report)))
}

/// Begins a program that goes on without its caller.
pub(super) async fn begin(call: ApiCall, body: RequestBody) -> Answer<Value> {
    let run = start(&call, body).await?;
    let id = run.id().to_string();
    run.detach();
    Ok(Json(json!({"task_id": id})))
}

/// A program that was begun.
pub(super) async fn result(call: ApiCall, Path(id): Path<String>) -> Answer<Value> {
    let id: RunId = id.parse().map_err(|_| Failure::new(Code::RunNotFound, "There is no such task."))?;
    Ok(Json(task(&call.parts.runs.get(&call.who, id)?.view())))
}

async fn start(call: &ApiCall, body: RequestBody) -> Result<RunHandle, Failure> {
    // Without capacity the body is not read.
    call.parts.runs.check_capacity(&call.who)?;
    let Execute { code, command, session_id, language, timeout } = body.lenient().await?;
    let program = code.into_iter().chain(command).find(|program| !program.is_empty());
    let program = program.ok_or_else(|| Failure::argument("code", "it is missing: give the program's text"))?;
    let limits = timeout.map(|seconds| parse::time_limit("timeout", seconds)).transpose()?;
    let (conversation, session, language) = if let Some(id) = session_id {
        let session = call.parts.sessions.get(&call.who, named(&id)?)?;
        // By the caller's token, which may be another than the one that opened the session.
        let conversation = call.key(session.conversation.id);
        match language.filter(|language| *language != session.language) {
            // Another language of the same conversation: its files are the same.
            Some(language) => (conversation, Some(CellSession::Any), language),
            None => (conversation, Some(CellSession::Open(session.session)), session.language),
        }
    } else {
        let language = language.unwrap_or_default();
        // In a cell the value of the last expression is shown, as it is there.
        let session = call.parts.runs.offers_sessions(&language).then_some(CellSession::Once);
        (call.key(ConversationId::fresh()), session, language)
    };
    call.parts.runs.begin(RunRequest {
        session,
        limits,
        detach: Some(false),
        within: call.trace,
        ..RunRequest::new(conversation, language, program.into())
    })
}
