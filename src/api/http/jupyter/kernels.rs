//! Kernels and their specifications, and Jupyter's sessions: which notebook or console has which kernel.

use std::time::Duration;

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse as _,
};
use futures_util::future::OptionFuture;
use serde_json::{Map, Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use uuid::Uuid;

use super::{Call, members};
use crate::{
    api::http::{Answer, ApiCall, ApiParts, Reply, RequestBody, no_content},
    domain::{Code, Failure, Language, SessionId, text::rfc3339},
    ports::runner::Runner,
    services::{
        kernels::{Document, DocumentChange, KernelView, Kernels},
        sessions::{SessionState, Sessions},
    },
};

/// The Jupyter Server whose API this is.
const VERSION: &str = "2.21.1";
/// What notebooks ask for that name no kernel.
const DEFAULT: &str = "python3";

pub(super) async fn version() -> Json<Value> {
    Json(json!({"version": VERSION}))
}

pub(super) async fn status(State(kernels): State<Kernels>, call: Call) -> Answer<Value> {
    let all = kernels.list(&call.api.who, call.pinned()?.as_ref());
    let connections: usize = all.iter().map(|kernel| kernel.connections).sum();
    let unused = all.iter().filter(|kernel| kernel.state != Some(SessionState::Busy)).map(|kernel| kernel.idle).min();
    let (started, last) = (rfc3339(kernels.started_unix_s()), ago(unused.unwrap_or_default()));
    Ok(Json(json!({"started": started, "last_activity": last, "connections": connections, "kernels": all.len()})))
}

pub(super) async fn specs(State(kernels): State<Kernels>) -> Json<Value> {
    let runners = kernels.runners();
    let specs = runners.iter().map(|runner| (name(&runners, runner), spec_shown(&runners, runner)));
    let specs: Map<_, _> = specs.collect();
    Json(json!({"default": default(&runners).map(|runner| name(&runners, runner)), "kernelspecs": specs}))
}

pub(super) async fn spec(State(kernels): State<Kernels>, call: Call) -> Answer<Value> {
    let runners = kernels.runners();
    let runner = find(&runners, Some(call.name()))?;
    Ok(Json(spec_shown(&runners, runner)))
}

pub(super) async fn list(State(kernels): State<Kernels>, call: Call) -> Answer<Vec<Value>> {
    let (runners, all) = (kernels.runners(), kernels.list(&call.api.who, call.pinned()?.as_ref()));
    Ok(Json(all.iter().map(|kernel| kernel_shown(&runners, kernel)).collect()))
}

/// Starts a kernel. What a client says of paths and environments is for another machine.
pub(super) async fn start(State(kernels): State<Kernels>, call: Call, body: RequestBody) -> Reply {
    let members = members(body).await?;
    let runners = kernels.runners();
    let runner = find(&runners, members.get("name").and_then(Value::as_str))?;
    let kernel = kernels.start(&call.conversation()?, &runner.language).await?;
    let location = format!("{}/api/kernels/{}", call.base, kernel_id(kernel.id));
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(kernel_shown(&runners, &kernel))).into_response())
}

pub(super) async fn get(State(kernels): State<Kernels>, call: Call) -> Answer<Value> {
    let kernel = kernels.get(&call.api.who, call.kernel(call.name())?)?;
    Ok(Json(kernel_shown(&kernels.runners(), &kernel)))
}

pub(super) async fn close(State(sessions): State<Sessions>, call: Call) -> Reply<StatusCode> {
    no_content(sessions.close(&call.api.who, call.kernel(call.name())?))
}

pub(super) async fn interrupt(State(sessions): State<Sessions>, call: Call) -> Reply<StatusCode> {
    no_content(sessions.interrupt(&call.api.who, call.kernel(call.name())?).await)
}

pub(super) async fn restart(State(kernels): State<Kernels>, call: Call) -> Answer<Value> {
    let kernel = kernels.restart(&call.api.who, call.kernel(call.name())?).await?;
    Ok(Json(kernel_shown(&kernels.runners(), &kernel)))
}

fn shown(kernels: &Kernels, call: &Call, document: &Document) -> Result<Value, Failure> {
    let kernel = kernel_shown(&kernels.runners(), &kernels.get(&call.api.who, document.kernel)?);
    let Document { id, path, name, kind, .. } = document;
    Ok(json!({"id": id.to_string(), "path": path, "name": name, "type": kind, "kernel": kernel,
        "notebook": {"path": path, "name": name}}))
}

pub(super) async fn list_sessions(State(kernels): State<Kernels>, call: Call) -> Answer<Vec<Value>> {
    let all = kernels.documents(&call.api.who, call.pinned()?.as_ref());
    // One whose kernel has just ended is left out.
    Ok(Json(all.iter().filter_map(|document| shown(&kernels, &call, document).ok()).collect()))
}

pub(super) async fn get_session(State(kernels): State<Kernels>, call: Call) -> Answer<Value> {
    let document = kernels.document(&call.api.who, call.pinned()?.as_ref(), call.uuid()?)?;
    Ok(Json(shown(&kernels, &call, &document)?))
}

/// What a client sends about a document, in the current form or that of old notebooks.
fn change_of(members: &Map<String, Value>) -> Result<DocumentChange, Failure> {
    let text = |name: &str| members.get(name).and_then(Value::as_str).map(str::to_owned);
    let old = || members.get("notebook").and_then(|notebook| notebook["path"].as_str()).map(str::to_owned);
    DocumentChange::new(text("path").or_else(old), text("name"), text("type"))
}

/// The kernel that a client names, or a new one.
async fn named(call: &Call, wanted: Option<&Value>) -> Result<SessionId, Failure> {
    let kernels = &call.api.parts.kernels;
    let text = |name: &str| wanted.and_then(|wanted| wanted[name].as_str());
    if let Some(id) = text("id") {
        return kernels.get(&call.api.who, call.kernel(id)?).map(|kernel| kernel.id);
    }
    let runners = kernels.runners();
    let runner = find(&runners, text("name"))?;
    kernels.start(&call.conversation()?, &runner.language).await.map(|kernel| kernel.id)
}

/// The session of a path: the one that is there, or a new one. A path in a conversation is another one than the same
/// path elsewhere.
pub(super) async fn create_session(State(kernels): State<Kernels>, call: Call, body: RequestBody) -> Reply {
    let members = members(body).await?;
    let (who, pin, change) = (&call.api.who, call.pinned()?, change_of(&members)?);
    // Those without a path are never the same.
    let path = change.path().filter(|path| !path.is_empty());
    let _creating = OptionFuture::from(path.map(|path| kernels.creating(who, pin.as_ref(), path))).await;
    let mut known = kernels.documents(who, pin.as_ref()).into_iter();
    let is_it = |document: &Document| Some(&*document.path) == path && document.pin == pin;
    let document = if let Some(document) = known.find(is_it) {
        document
    } else {
        let kernel = named(&call, members.get("kernel")).await?;
        kernels.add_document(who, pin, kernel, change)
    };
    let location = [(header::LOCATION, format!("{}/api/sessions/{}", call.base, document.id))];
    Ok((StatusCode::CREATED, location, Json(shown(&kernels, &call, &document)?)).into_response())
}

/// Renames a session or gives it another kernel; the one that it had ends.
pub(super) async fn change_session(call: Call, body: RequestBody) -> Answer<Value> {
    let ApiParts { kernels, sessions, .. } = &call.api.parts;
    let members = members(body).await?;
    let (who, id) = (&call.api.who, call.uuid()?);
    kernels.document(who, call.pinned()?.as_ref(), id)?;
    let mut change = change_of(&members)?;
    let known: Vec<_> = kernels.list(who, None).iter().map(|kernel| kernel.id).collect();
    let wanted = members.get("kernel").filter(|wanted| wanted["id"].is_string() || wanted["name"].is_string());
    if wanted.is_some() {
        change.kernel = Some(named(&call, wanted).await?);
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
    Ok(Json(shown(kernels, &call, &document)?))
}

pub(super) async fn remove_session(call: Call) -> Reply<StatusCode> {
    let ApiCall { parts, who, .. } = &call.api;
    let kernel = parts.kernels.remove_document(who, call.pinned()?.as_ref(), call.uuid()?)?;
    no_content(parts.sessions.close(who, kernel))
}

/// The name of a runner's kernel: that of its kernelspec, or of its language where two share one.
fn name(runners: &[Runner], runner: &Runner) -> String {
    let kernel = runner.kernel.as_deref().unwrap_or_default();
    let is_shared = runners.iter().filter(|other| other.kernel.as_deref() == Some(kernel)).count() > 1;
    if is_shared { runner.language.to_string() } else { kernel.to_owned() }
}

fn default(runners: &[Runner]) -> Option<&Runner> {
    runners.iter().find(|runner| name(runners, runner) == DEFAULT).or(runners.first())
}

/// The runner of a kernel's name; a language or an alias of one is a name too.
fn find<'a>(runners: &'a [Runner], wanted: Option<&str>) -> Result<&'a Runner, Failure> {
    let why = "No installed runner has a kernel: the operator builds them with ./build.sh.";
    let default = default(runners).ok_or_else(|| Failure::new(Code::RunnerNotFound, why))?;
    let Some(wanted) = wanted.filter(|wanted| !wanted.is_empty()) else { return Ok(default) };
    let named = runners.iter().find(|runner| name(runners, runner) == wanted);
    let found = named.or_else(|| Runner::find(runners, &wanted.parse::<Language>().ok()?));
    found.ok_or_else(|| {
        let known: Vec<_> = runners.iter().map(|runner| name(runners, runner)).collect();
        Failure::new(Code::RunnerNotFound, format!("There is no kernel of that name; there are {}.", known.join(", ")))
    })
}

fn spec_shown(runners: &[Runner], runner: &Runner) -> Value {
    let language = runner.language.as_str();
    let (first, rest) = language.split_at_checked(1).unwrap_or((language, ""));
    let version = runner.version.as_deref().unwrap_or_default();
    let display = format!("{}{rest} {version}", first.to_uppercase());
    // There is no command to run: the kernel is in a sandbox.
    let spec = json!({"argv": [], "env": {}, "display_name": display.trim_end(), "language": language,
        "interrupt_mode": "message", "metadata": {}});
    json!({"name": name(runners, runner), "spec": spec, "resources": {}})
}

/// A moment so long ago.
fn ago(time: Duration) -> String {
    let time = OffsetDateTime::now_utc() - time;
    // Some clients parse whole microseconds only.
    let time = time.replace_nanosecond(time.microsecond() * 1000).unwrap_or(time);
    time.format(&Rfc3339).unwrap_or_default()
}

/// A kernel's id in the form that Jupyter's routes take.
fn kernel_id(session: SessionId) -> String {
    Uuid::from_bytes(session.to_bytes()).to_string()
}

fn kernel_shown(runners: &[Runner], kernel: &KernelView) -> Value {
    let state = kernel.state.map_or("restarting", SessionState::word);
    let runner = runners.iter().find(|runner| runner.language == kernel.language);
    let name = runner.map_or_else(|| kernel.language.to_string(), |runner| name(runners, runner));
    json!({"id": kernel_id(kernel.id), "name": name, "last_activity": ago(kernel.idle), "execution_state": state,
        "connections": kernel.connections})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::{
        engine::ImageId,
        runner::{self, RunnerImage},
    };

    #[test]
    fn server_without_kernels_says_so_whatever_is_asked_for() {
        for wanted in [None, Some(""), Some("python3")] {
            let why = find(&[], wanted).expect_err("no kernel").message;
            assert!(why.contains("./build.sh"), "{wanted:?}: {why}");
        }
    }

    #[test]
    fn language_is_found_by_its_own_name_before_an_alias_of_another() {
        let runners = [("pypy", "python", "pypy3"), ("python", "py", "python3")].map(|(language, alias, kernel)| {
            let labels = [
                (runner::LABEL_RUNNER, "true"),
                (runner::LABEL_LANGUAGE, language),
                (runner::LABEL_ALIASES, alias),
                (runner::LABEL_PROTOCOL, "2"),
                (runner::LABEL_KERNEL, kernel),
            ];
            let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
            let id = ImageId(language.to_owned());
            Runner::from_image(&RunnerImage { id, reference: None, created_unix_s: 0, labels, flaw: None })
                .expect("a runner")
        });
        for (wanted, language) in [("python", "python"), ("py", "python"), ("python3", "python"), ("pypy3", "pypy")] {
            assert_eq!(find(&runners, Some(wanted)).expect("a kernel").language.as_str(), language, "{wanted}");
        }
    }
}
