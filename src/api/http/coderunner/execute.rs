//! Programs: in a session, where variables stay, or as separate runs; synchronously, or started and polled. And the
//! answers in CodeRunner's form.

use axum::Json;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::sessions::named;
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
        outcome::{Ended, Figures},
        text::rfc3339,
    },
    services::runs::{CellSession, Report, RunHandle, RunRequest, RunView},
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
    call.begin(RunRequest { session, limits, ..RunRequest::new(conversation, language, program.into()) })
}

/// A program that was run. Times are in seconds.
#[derive(Debug, Default, Serialize)]
pub(super) struct Executed {
    stdout: String,
    stderr: String,
    execution_time: f64,
    cpu_time: f64,
}

/// A refusal: the members of each of CodeRunner's answers, so that any of its clients finds what it reads.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CodeRunnerRefusal {
    pub status: &'static str,
    pub error: String,
    pub detail: String,
    pub code: &'static str,
    pub request_id: String,
    #[serde(flatten)]
    executed: Executed,
}

impl CodeRunnerRefusal {
    pub fn new(code: &'static str, message: String, request_id: String) -> Self {
        let executed = Executed { stderr: message.clone(), ..Executed::default() };
        Self { status: "error", error: message.clone(), detail: message, code, request_id, executed }
    }
}

/// Wall clock and CPU time.
fn seconds(figures: &Figures) -> (f64, f64) {
    (figures.wall.as_secs_f64(), figures.cpu.unwrap_or_default().as_secs_f64())
}

/// What the program printed to standard error, and what stopped it where that does not say so.
pub(in crate::api::http) fn stderr(report: &Report) -> String {
    let mut text = report.stderr.text.clone();
    let is_said = match report.outcome.ended {
        Ended::Exited { code: 0 } => true,
        Ended::Exited { .. } => !text.is_empty(),
        _ => false,
    };
    if !is_said {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&report.outcome.sentence());
    }
    text
}

impl From<&Report> for Executed {
    fn from(report: &Report) -> Self {
        let (execution_time, cpu_time) = seconds(&report.outcome.figures);
        Self { stdout: report.stdout.text.clone(), stderr: stderr(report), execution_time, cpu_time }
    }
}

/// A task of `execute_async`.
fn task(view: &RunView) -> Value {
    let (stdout, stderr, times) = match &view.result {
        None => Default::default(),
        Some(Ok(report)) => (report.stdout.text.clone(), stderr(report), Some(seconds(&report.outcome.figures))),
        Some(Err(Failure { message, .. })) => (String::new(), message.clone(), None),
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
