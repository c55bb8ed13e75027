//! Jupyter's sessions: which notebook or console has which kernel.

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value};

use super::{
    call::{self, Call, members},
    model,
};
use crate::{
    api::http::{Answer, body::RequestBody, error::ApiError},
    domain::{error::Failure, id::SessionId},
    services::kernels::{Document, DocumentChange, Kernels},
};

fn shown(kernels: &Kernels, call: &Call, document: &Document) -> Result<Value, Failure> {
    let kernel = kernels.get(&call.who, document.kernel)?;
    Ok(model::session(&kernels.runners(), document, &kernel))
}

pub(super) async fn list(State(kernels): State<Kernels>, call: Call) -> Answer<Vec<Value>> {
    let all = kernels.documents(&call.who, call.pinned()?.as_ref());
    // One whose kernel has just ended is left out.
    Ok(Json(all.iter().filter_map(|document| shown(&kernels, &call, document).ok()).collect()))
}

pub(super) async fn get(State(kernels): State<Kernels>, call: Call) -> Answer<Value> {
    let document = kernels.document(&call.who, call.uuid()?)?;
    Ok(Json(shown(&kernels, &call, &document)?))
}

/// What a client sends about a document, in the current form or that of old notebooks.
fn change_of(members: &Map<String, Value>) -> DocumentChange {
    let text = |name: &str| members.get(name).and_then(Value::as_str).map(str::to_owned);
    let old = || members.get("notebook").and_then(|notebook| notebook["path"].as_str()).map(str::to_owned);
    DocumentChange { path: text("path").or_else(old), name: text("name"), kind: text("type"), kernel: None }
}

/// The kernel that a client names, or a new one.
async fn kernel(kernels: &Kernels, call: &Call, named: Option<&Value>) -> Result<SessionId, Failure> {
    let text = |name: &str| named.and_then(|named| named[name].as_str());
    if let Some(id) = text("id") {
        return kernels.get(&call.who, call::kernel(id)?).map(|kernel| kernel.id);
    }
    let runners = kernels.runners();
    let runner = model::find(&runners, text("name"))?;
    kernels.start(&call.conversation()?, &runner.language).await.map(|kernel| kernel.id)
}

/// The session of a path: the one that is there, or a new one.
pub(super) async fn create(
    State(kernels): State<Kernels>,
    call: Call,
    body: RequestBody,
) -> Result<Response, ApiError> {
    let members = members(body).await?;
    let (who, change) = (&call.who, change_of(&members));
    let known = kernels.documents(who, call.pinned()?.as_ref()).into_iter();
    let is_it = |document: &Document| !document.path.is_empty() && Some(&document.path) == change.path.as_ref();
    let document = match known.into_iter().find(is_it) {
        Some(document) => document,
        None => kernels.add_document(who, kernel(&kernels, &call, members.get("kernel")).await?, change)?,
    };
    let location = [(header::LOCATION, format!("{}/api/sessions/{}", call.base(), document.id))];
    Ok((StatusCode::CREATED, location, Json(shown(&kernels, &call, &document)?)).into_response())
}

/// Renames a session or gives it another kernel; the one that it had ends.
pub(super) async fn change(State(kernels): State<Kernels>, call: Call, body: RequestBody) -> Answer<Value> {
    let members = members(body).await?;
    let (who, id) = (&call.who, call.uuid()?);
    let before = kernels.document(who, id)?.kernel;
    let mut change = change_of(&members);
    if let Some(named) = members.get("kernel").filter(|named| named["id"].is_string() || named["name"].is_string()) {
        change.kernel = Some(kernel(&kernels, &call, Some(named)).await?);
    }
    let document = kernels.change_document(who, id, change)?;
    if document.kernel != before {
        kernels.close(who, before)?;
    }
    Ok(Json(shown(&kernels, &call, &document)?))
}

pub(super) async fn remove(State(kernels): State<Kernels>, call: Call) -> Result<StatusCode, ApiError> {
    let kernel = kernels.remove_document(&call.who, call.uuid()?)?;
    kernels.close(&call.who, kernel)?;
    Ok(StatusCode::NO_CONTENT)
}
