//! Kernels and their specifications.

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse as _,
};
use serde_json::{Value, json};

use super::{
    call::{Call, members},
    model,
};
use crate::{
    api::http::{Answer, Reply, body::RequestBody, no_content},
    domain::text::rfc3339,
    services::{
        kernels::Kernels,
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
    let location = format!("{}/api/kernels/{}", call.base(), model::id(kernel.id));
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
