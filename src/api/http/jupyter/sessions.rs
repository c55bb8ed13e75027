//! Jupyter's sessions: which notebook or console has which kernel.

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse as _,
};
use futures_util::future::OptionFuture;
use serde_json::{Map, Value};

use super::{
    call::{self, Call, members},
    model,
};
use crate::{
    api::http::{Answer, ApiParts, Reply, body::RequestBody, no_content},
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
fn change_of(members: &Map<String, Value>) -> Result<DocumentChange, Failure> {
    let text = |name: &str| members.get(name).and_then(Value::as_str).map(str::to_owned);
    let old = || members.get("notebook").and_then(|notebook| notebook["path"].as_str()).map(str::to_owned);
    DocumentChange::new(text("path").or_else(old), text("name"), text("type"))
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
pub(super) async fn create(State(kernels): State<Kernels>, call: Call, body: RequestBody) -> Reply {
    let members = members(body).await?;
    let (who, change) = (&call.who, change_of(&members)?);
    // Those without a path are never the same.
    let path = change.path().filter(|path| !path.is_empty());
    let _creating = OptionFuture::from(path.map(|path| kernels.creating(who, path))).await;
    let known = kernels.documents(who, call.pinned()?.as_ref()).into_iter();
    let is_it = |document: &Document| Some(&*document.path) == path;
    let document = match known.into_iter().find(is_it) {
        Some(document) => document,
        None => kernels.add_document(who, kernel(&kernels, &call, members.get("kernel")).await?, change),
    };
    let location = [(header::LOCATION, format!("{}/api/sessions/{}", call.base(), document.id))];
    Ok((StatusCode::CREATED, location, Json(shown(&kernels, &call, &document)?)).into_response())
}

/// Renames a session or gives it another kernel; the one that it had ends.
pub(super) async fn change(parts: ApiParts, call: Call, body: RequestBody) -> Answer<Value> {
    let ApiParts { kernels, sessions, .. } = parts;
    let members = members(body).await?;
    let (who, id) = (&call.who, call.uuid()?);
    kernels.document(who, id)?;
    let mut change = change_of(&members)?;
    let known: Vec<_> = kernels.list(who, None).iter().map(|kernel| kernel.id).collect();
    if let Some(named) = members.get("kernel").filter(|named| named["id"].is_string() || named["name"].is_string()) {
        change.kernel = Some(kernel(&kernels, &call, Some(named)).await?);
    }
    let fresh = change.kernel.filter(|kernel| !known.contains(kernel));
    let (document, before) = kernels.change_document(who, id, change).inspect_err(|_| {
        // The document was removed while its kernel was started.
        drop(fresh.map(|kernel| sessions.close(who, kernel)));
    })?;
    if document.kernel != before {
        // One that has just ended by itself is what is wanted.
        drop(sessions.close(who, before));
    }
    Ok(Json(shown(&kernels, &call, &document)?))
}

pub(super) async fn remove(parts: ApiParts, call: Call) -> Reply<StatusCode> {
    let kernel = parts.kernels.remove_document(&call.who, call.uuid()?)?;
    no_content(parts.sessions.close(&call.who, kernel))
}
