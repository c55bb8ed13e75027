//! Kernels and their specifications, and Jupyter's sessions: which notebook or console has which kernel.

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse as _,
};
use futures_util::future::OptionFuture;
use serde_json::{Map, Value, json};

use super::{Call, kernel, members, model};
use crate::{
    api::http::{Answer, ApiParts, Reply, body::RequestBody, no_content},
    domain::{error::Failure, id::SessionId, text::rfc3339},
    services::{
        kernels::{Document, DocumentChange, Kernels},
        sessions::{SessionState, Sessions},
    },
};

/// The Jupyter Server whose API this is.
const VERSION: &str = "2.21.1";

pub(super) async fn version() -> Json<Value> {
    Json(json!({"version": VERSION}))
}

pub(super) async fn status(State(kernels): State<Kernels>, call: Call) -> Answer<Value> {
    let all = kernels.list(&call.who, call.pinned()?.as_ref());
    let connections: usize = all.iter().map(|kernel| kernel.connections).sum();
    let unused = all.iter().filter(|kernel| kernel.state != Some(SessionState::Busy)).map(|kernel| kernel.idle).min();
    let (started, last) = (rfc3339(kernels.started_unix_s()), model::ago(unused.unwrap_or_default()));
    Ok(Json(json!({"started": started, "last_activity": last, "connections": connections, "kernels": all.len()})))
}

pub(super) async fn specs(State(kernels): State<Kernels>) -> Json<Value> {
    Json(model::specs(&kernels.runners()))
}

pub(super) async fn spec(State(kernels): State<Kernels>, call: Call) -> Answer<Value> {
    let runners = kernels.runners();
    let runner = model::find(&runners, Some(call.name()))?;
    Ok(Json(model::spec(&runners, runner)))
}

pub(super) async fn list(State(kernels): State<Kernels>, call: Call) -> Answer<Vec<Value>> {
    let (runners, all) = (kernels.runners(), kernels.list(&call.who, call.pinned()?.as_ref()));
    Ok(Json(all.iter().map(|kernel| model::kernel(&runners, kernel)).collect()))
}

/// Starts a kernel. What a client says of paths and environments is for another machine.
pub(super) async fn start(State(kernels): State<Kernels>, call: Call, body: RequestBody) -> Reply {
    let members = members(body).await?;
    let runners = kernels.runners();
    let runner = model::find(&runners, members.get("name").and_then(Value::as_str))?;
    let kernel = kernels.start(&call.conversation()?, &runner.language).await?;
    let location = format!("{}/api/kernels/{}", call.base, model::id(kernel.id));
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(model::kernel(&runners, &kernel))).into_response())
}

pub(super) async fn get(State(kernels): State<Kernels>, call: Call) -> Answer<Value> {
    let kernel = kernels.get(&call.who, call.kernel()?)?;
    Ok(Json(model::kernel(&kernels.runners(), &kernel)))
}

pub(super) async fn close(State(sessions): State<Sessions>, call: Call) -> Reply<StatusCode> {
    no_content(sessions.close(&call.who, call.kernel()?))
}

pub(super) async fn interrupt(State(sessions): State<Sessions>, call: Call) -> Reply<StatusCode> {
    no_content(sessions.interrupt(&call.who, call.kernel()?).await)
}

pub(super) async fn restart(State(kernels): State<Kernels>, call: Call) -> Answer<Value> {
    let kernel = kernels.restart(&call.who, call.kernel()?).await?;
    Ok(Json(model::kernel(&kernels.runners(), &kernel)))
}

fn shown(kernels: &Kernels, call: &Call, document: &Document) -> Result<Value, Failure> {
    let kernel = kernels.get(&call.who, document.kernel)?;
    Ok(model::session(&kernels.runners(), document, &kernel))
}

pub(super) async fn list_sessions(State(kernels): State<Kernels>, call: Call) -> Answer<Vec<Value>> {
    let all = kernels.documents(&call.who, call.pinned()?.as_ref());
    // One whose kernel has just ended is left out.
    Ok(Json(all.iter().filter_map(|document| shown(&kernels, &call, document).ok()).collect()))
}

pub(super) async fn get_session(State(kernels): State<Kernels>, call: Call) -> Answer<Value> {
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
async fn named(kernels: &Kernels, call: &Call, wanted: Option<&Value>) -> Result<SessionId, Failure> {
    let text = |name: &str| wanted.and_then(|wanted| wanted[name].as_str());
    if let Some(id) = text("id") {
        return kernels.get(&call.who, kernel(id)?).map(|kernel| kernel.id);
    }
    let runners = kernels.runners();
    let runner = model::find(&runners, text("name"))?;
    kernels.start(&call.conversation()?, &runner.language).await.map(|kernel| kernel.id)
}

/// The session of a path: the one that is there, or a new one.
pub(super) async fn create_session(State(kernels): State<Kernels>, call: Call, body: RequestBody) -> Reply {
    let members = members(body).await?;
    let (who, change) = (&call.who, change_of(&members)?);
    // Those without a path are never the same.
    let path = change.path().filter(|path| !path.is_empty());
    let _creating = OptionFuture::from(path.map(|path| kernels.creating(who, path))).await;
    let known = kernels.documents(who, call.pinned()?.as_ref()).into_iter();
    let is_it = |document: &Document| Some(&*document.path) == path;
    let document = match known.into_iter().find(is_it) {
        Some(document) => document,
        None => kernels.add_document(who, named(&kernels, &call, members.get("kernel")).await?, change),
    };
    let location = [(header::LOCATION, format!("{}/api/sessions/{}", call.base, document.id))];
    Ok((StatusCode::CREATED, location, Json(shown(&kernels, &call, &document)?)).into_response())
}

/// Renames a session or gives it another kernel; the one that it had ends.
pub(super) async fn change_session(parts: ApiParts, call: Call, body: RequestBody) -> Answer<Value> {
    let ApiParts { kernels, sessions, .. } = parts;
    let members = members(body).await?;
    let (who, id) = (&call.who, call.uuid()?);
    kernels.document(who, id)?;
    let mut change = change_of(&members)?;
    let known: Vec<_> = kernels.list(who, None).iter().map(|kernel| kernel.id).collect();
    let wanted = members.get("kernel").filter(|wanted| wanted["id"].is_string() || wanted["name"].is_string());
    if wanted.is_some() {
        change.kernel = Some(named(&kernels, &call, wanted).await?);
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

pub(super) async fn remove_session(parts: ApiParts, call: Call) -> Reply<StatusCode> {
    let kernel = parts.kernels.remove_document(&call.who, call.uuid()?)?;
    no_content(parts.sessions.close(&call.who, kernel))
}
