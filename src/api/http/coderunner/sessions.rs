//! Sessions, programs and files under the names that CodeRunner and its vendor's SDK have for them.
//!
//! A program runs in a session, where variables stay, or as a run of its own; synchronously, or started and polled.
//! Files are those of a session's conversation: CodeRunner's clients name absolute paths; here each is below `/data`,
//! and the answer says where.

use axum::Json;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use multer::{Constraints, Field, SizeLimit};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::members;
use crate::{
    api::{
        http::{
            Answer, ApiCall, Form, Path, Query, RequestBody,
            error::{ApiError, FailedRun},
            files::{NOT_WHOLE, WHOLE_BYTES_MAX},
            multipart,
        },
        schema::{parse, session::SessionStatus},
    },
    domain::{Code, ConversationId, Ended, Failure, Figures, Language, RunId, SafePath, SessionId, text::rfc3339},
    services::{
        runs::{CellSession, Report, Run, RunHandle, RunRequest},
        sessions::SessionView,
    },
};

/// A member beside the file, in bytes.
const MEMBER_BYTES_MAX: u64 = 8 << 10;
const MEMBERS_MAX: usize = 8;
/// The folders that stand for `/data` in CodeRunner's containers and in ours.
const DATA: [&str; 2] = ["/app/uploads/", "/data/"];

#[derive(Deserialize)]
pub(super) struct OfSession {
    session_id: Option<String>,
}

/// The session with an id; any other text names no session.
pub(super) fn session(ApiCall { parts, who, .. }: &ApiCall, id: &str) -> Result<SessionView, Failure> {
    let none = |_| Failure::new(Code::SessionNotFound, "session_id: there is no such session.");
    parts.sessions.get(who, id.parse::<SessionId>().map_err(none)?)
}

/// Opens a session for Python. What the body says of a machine is the operator's to decide here.
pub(super) async fn open(call: ApiCall) -> Answer<SessionStatus> {
    call.parts.runs.check_capacity(&call.who)?;
    let conversation = call.key(ConversationId::fresh());
    let view = call.parts.sessions.open(&conversation, &Language::default()).await?;
    Ok(Json(SessionStatus::from(&view)))
}

/// The session with an id; without one the newest.
fn found(call: &ApiCall, id: Option<&str>) -> Result<SessionView, Failure> {
    let none = || Failure::new(Code::SessionNotFound, "There is no open session.");
    let newest = || call.parts.sessions.list(&call.who, None).into_iter().next().ok_or_else(none);
    id.map_or_else(newest, |id| session(call, id))
}

/// The session that the query names; without a name the newest.
pub(super) async fn newest(call: ApiCall, Query(query): Query<OfSession>) -> Answer<SessionStatus> {
    Ok(Json(SessionStatus::from(&found(&call, query.session_id.as_deref())?)))
}

/// A session.
pub(super) async fn get(call: ApiCall, Path(id): Path<String>) -> Answer<SessionStatus> {
    Ok(Json(SessionStatus::from(&session(&call, &id)?)))
}

/// Whether a session is open. One that has ended is an answer here.
pub(super) async fn status(call: ApiCall, Path(id): Path<String>) -> Answer<Value> {
    let word = match session(&call, &id) {
        Ok(_) => "active",
        Err(failure) if failure.code == Code::SessionEnded => "stopped",
        Err(failure) => return Err(failure.into()),
    };
    Ok(Json(json!({"session_id": id, "status": word, "vm_status": word})))
}

/// The id in the body or the query.
async fn asked(Query(query): Query<OfSession>, body: RequestBody) -> Result<Option<String>, Failure> {
    let body = if body.is_empty() { Map::new() } else { members(body).await? };
    Ok(body.get("session_id").and_then(Value::as_str).map(str::to_owned).or(query.session_id))
}

pub(super) fn closed(call: &ApiCall, id: Option<&str>) -> Answer<SessionStatus> {
    let id = found(call, id)?.session;
    Ok(Json(SessionStatus::ended(&call.parts.sessions.close(&call.who, id)?)))
}

/// Closes the session that the body or the query names.
pub(super) async fn close_named(call: ApiCall, query: Query<OfSession>, body: RequestBody) -> Answer<SessionStatus> {
    let id = asked(query, body).await?;
    let id = id.ok_or_else(|| Failure::argument("session_id", "it is missing: name the session to close"))?;
    closed(&call, Some(&id))
}

/// The same; without a name the newest, which [`newest`] answers: CodeRunner had one kernel, and its clients name none.
pub(super) async fn close_newest(call: ApiCall, query: Query<OfSession>, body: RequestBody) -> Answer<SessionStatus> {
    let id = asked(query, body).await?;
    closed(&call, id.as_deref())
}

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
pub(super) async fn execute(call: ApiCall, body: RequestBody) -> Answer<Value> {
    let run = start(&call, body).await?;
    let report = run.finished().await;
    let report = report.map_err(|failure| {
        let failed = FailedRun { id: run.id(), printed: printed(&run) };
        ApiError { run: Some(Box::new(failed)), ..failure.into() }
    })?;
    let (wall, cpu) = seconds(&report.outcome.figures);
    let (stdout, stderr) = (&report.stdout.text, stderr(&report));
    Ok(Json(json!({"stdout": stdout, "stderr": stderr, "execution_time": wall, "cpu_time": cpu})))
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
    let run = call.parts.runs.get(&call.who, id)?;
    Ok(Json(task(&run)))
}

async fn start(call: &ApiCall, body: RequestBody) -> Result<RunHandle, Failure> {
    // Without capacity the body is not read.
    call.parts.runs.check_capacity(&call.who)?;
    let Execute { code, command, session_id, language, timeout } = body.lenient().await?;
    let members = [("code", code), ("command", command)].into_iter();
    let mut programs = members.filter_map(|(name, text)| Some((name, text.filter(|text| !text.is_empty())?)));
    let missing = || Failure::argument("code", "it is missing: give the program's text");
    let (member, program) = programs.next().ok_or_else(missing)?;
    let limits = timeout.map(|seconds| parse::time_limit("timeout", seconds)).transpose()?;
    let (conversation, session, language) = if let Some(id) = session_id {
        let session = session(call, &id)?;
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
    let run = call.begin(RunRequest { session, limits, ..RunRequest::new(conversation, language, program.into()) });
    run.map_err(|failure| failure.renamed("code", member))
}

/// Wall clock and CPU time, in seconds.
fn seconds(figures: &Figures) -> (f64, f64) {
    (figures.wall.as_secs_f64(), figures.cpu.unwrap_or_default().as_secs_f64())
}

/// What the program printed to standard error, and what stopped it where that does not say so.
pub(in crate::api::http) fn stderr(report: &Report) -> String {
    let text = report.stderr.text.clone();
    let is_said = match report.outcome.ended {
        Ended::Exited { code: 0 } => true,
        Ended::Exited { .. } => !text.is_empty(),
        _ => false,
    };
    if is_said { text } else { with_sentence(text, &report.outcome.sentence()) }
}

/// What was printed, and a sentence on a line of its own.
pub(in crate::api::http) fn with_sentence(mut text: String, sentence: &str) -> String {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text + sentence
}

/// What a run that failed had printed to standard output and standard error.
fn printed(run: &Run) -> [String; 2] {
    let (stdout, stderr) = run.output(0, run.view().newest);
    [stdout.text, stderr.text]
}

/// A task of `execute_async`.
fn task(run: &Run) -> Value {
    let view = run.view();
    let (stdout, stderr, times) = match &view.result {
        None => Default::default(),
        Some(Ok(report)) => (report.stdout.text.clone(), stderr(report), Some(seconds(&report.outcome.figures))),
        Some(Err(Failure { message, .. })) => {
            let [stdout, stderr] = printed(run);
            (stdout, with_sentence(stderr, message), None)
        }
    };
    let (wall, cpu) = times.unzip();
    json!({
        "task_id": view.run.to_string(),
        "is_complete": view.result.is_some(),
        "serialized_stdout": stdout,
        "serialized_stderr": stderr,
        "execution_time": wall,
        "cpu_time": cpu,
        "created_at": rfc3339(view.created_unix_s),
    })
}

/// Writes a file. The members `session_id` and `remote_path` come before the file, as the SDK sends them.
pub(super) async fn upload(call: ApiCall, body: RequestBody) -> Answer<Value> {
    let names = ["remote_path", "session_id", "recursive"];
    let limits = names.iter().fold(SizeLimit::new(), |limits, name| limits.for_field(*name, MEMBER_BYTES_MAX));
    let mut form = Form::announced(body, Constraints::new().size_limit(limits))?;
    let (mut id, mut path) = (None, None);
    for _ in 0..MEMBERS_MAX {
        let Some(field) = form.next_field().await? else { break };
        match field.name() {
            Some("session_id") => id = Some(multipart::text(field).await?),
            Some("remote_path") => path = Some(multipart::text(field).await?),
            Some("file") => return write(&call, id, path, field).await,
            _ => {}
        }
    }
    Err(Failure::argument("file", "it is missing: send the file").into())
}

async fn write(call: &ApiCall, id: Option<String>, path: Option<String>, field: Field<'_>) -> Answer<Value> {
    let early = |name: &str| Failure::argument(name, "it is missing: send it before the file");
    let (id, mut path) = (id.ok_or_else(|| early("session_id"))?, path.ok_or_else(|| early("remote_path"))?);
    let conversation = session(call, &id)?.conversation;
    if path.ends_with('/') {
        path += field.file_name().and_then(|name| name.rsplit('/').next()).unwrap_or_default();
    }
    let path = below_data("remote_path", &path)?;
    let entry = call.parts.files.upload(&conversation, &path, None, None, multipart::pieces(field)).await?;
    let path = format!("/data/{}", path.text());
    Ok(Json(json!({"status": "success", "path": path, "size": entry.size})))
}

/// Reads a file, in base64.
pub(super) async fn download(call: ApiCall, body: RequestBody) -> Answer<Value> {
    let body = members(body).await?;
    let member = |name: &str| {
        let text = body.get(name).and_then(Value::as_str);
        text.ok_or_else(|| Failure::argument(name, "it is missing: give a text"))
    };
    let conversation = session(&call, member("session_id")?)?.conversation;
    let path = below_data("filename", member("filename")?)?;
    let file = call.parts.files.read(&conversation, &path, 0, WHOLE_BYTES_MAX).await?.whole(NOT_WHOLE)?;
    let content = BASE64_STANDARD.encode(&file.bytes);
    Ok(Json(json!({"status": "success", "filename": path.text(), "size": file.size, "content": content})))
}

fn below_data(name: &str, path: &str) -> Result<SafePath, Failure> {
    let within = DATA.iter().find_map(|folder| path.strip_prefix(folder)).unwrap_or(path);
    SafePath::from_text(within.trim_start_matches('/')).map_err(|why| Failure::argument(name, why))
}
