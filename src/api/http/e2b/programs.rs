//! Programs, answered as they run. A cell runs in a context, which is a session; a sandbox has one for each language.
//! Its answer is a JSON object a line.
//!
//! A command is a program of its own in a new sandbox with the same files. What it leaves running ends with it, so
//! there are no processes to list, signal or connect to. Its form is Connect's: JSON in frames of a flag, a length of
//! four bytes, and the message.

use std::convert::Infallible;

use axum::{
    Json,
    body::Body,
    http::{HeaderMap, StatusCode, header},
    response::IntoResponse as _,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures_util::{StreamExt as _, future, stream};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{NamedSandbox, below_data};
use crate::{
    api::{
        http::{Answer, Path, Reply, RequestBody, json, no_content},
        schema::parse::{self, Source},
    },
    domain::{
        Code, DisplayKind, Ended, Environment, Event, EventKind, Failure, Language, Limits, Outcome, SessionId,
        StreamKind, event::Display, text::cut_mark,
    },
    services::{
        runs::{CellSession, RunRequest},
        sessions::SessionView,
    },
};

/// What an answer repeats of a traceback, in bytes.
const TRACEBACK_BYTES_MAX: usize = 64 << 10;
/// Values in the message that starts a command.
const VALUES_MAX: usize = 2000;
/// The length of a frame's head, which comes before its message.
const HEAD_BYTES: usize = 5;
/// The status of a command that was stopped, as of `timeout`.
const STOPPED: i32 = 124;

/// The names of media types in E2B's results.
const FORMS: [(&str, &str); 10] = [
    ("text/plain", "text"),
    ("text/html", "html"),
    ("text/markdown", "markdown"),
    ("image/svg+xml", "svg"),
    ("image/png", "png"),
    ("image/jpeg", "jpeg"),
    ("application/pdf", "pdf"),
    ("text/latex", "latex"),
    ("application/json", "json"),
    ("application/javascript", "javascript"),
];

#[derive(Deserialize, JsonSchema)]
struct Execute {
    code: String,
    context_id: Option<String>,
    language: Option<Language>,
    env_vars: Option<Map<String, Value>>,
}

#[derive(Deserialize, JsonSchema)]
struct Open {
    language: Option<Language>,
    cwd: Option<String>,
}

/// Runs a cell. A client that goes away interrupts it.
pub(super) async fn execute(sandbox: NamedSandbox, body: RequestBody) -> Reply {
    // Without capacity the body is not read.
    sandbox.call.parts.runs.check_capacity(&sandbox.key.owner)?;
    let Execute { code, context_id, language, env_vars } = body.lenient().await?;
    if env_vars.is_some_and(|variables| !variables.is_empty()) {
        let why = "a cell takes none: set them when the sandbox is created, or in the code";
        return Err(Failure::argument("env_vars", why).into());
    }
    let view = match context_id {
        Some(id) => sandbox.context(&id)?,
        None => sandbox.session(language).await?,
    };
    let (NamedSandbox { call, key, .. }, SessionView { session, language, .. }) = (sandbox, view);
    let run = call.begin(RunRequest {
        session: Some(CellSession::Open(session)),
        ..RunRequest::new(key.clone(), language, code.into())
    })?;
    let mut lines = Lines { begun_unix_ms: run.id().unix_ms(), ..Lines::default() };
    let lines = run.events(0).map(move |event| {
        let mut shown = lines.of(&event);
        if event.kind.is_last() {
            let cells = call.parts.sessions.get(&key.owner, session).map_or(1, |view| view.cells);
            shown.insert(0, json!({"type": "number_of_executions", "execution_count": cells}));
            shown.push(json!({"type": "end_of_execution"}));
        }
        // The cell lives as long as its answer.
        let _ = &run;
        shown.iter().map(|line| line.to_string() + "\n").collect::<String>()
    });
    let lines = lines.filter(|text| future::ready(!text.is_empty())).map(Ok::<_, Infallible>);
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response())
}

/// What of a cell was answered so far, as far as later lines need it.
#[derive(Default)]
struct Lines {
    begun_unix_ms: i64,
    stderr: String,
    failed: Option<(String, String)>,
}

impl Lines {
    fn of(&mut self, event: &Event) -> Vec<Value> {
        // In nanoseconds of Unix time.
        let at = i64::try_from(event.at.as_nanos()).unwrap_or(i64::MAX);
        let at = self.begun_unix_ms.saturating_mul(1_000_000).saturating_add(at);
        match &event.kind {
            EventKind::Output(stream, bytes) => {
                let text = String::from_utf8_lossy(bytes);
                if *stream == StreamKind::Stderr && self.stderr.len() + text.len() <= TRACEBACK_BYTES_MAX {
                    self.stderr.push_str(&text);
                }
                vec![json!({"type": stream.word(), "text": text, "timestamp": at})]
            }
            EventKind::Cut { stdout_bytes, stderr_bytes } => marks(*stdout_bytes, *stderr_bytes)
                .map(|(stream, mark)| json!({"type": stream, "text": mark, "timestamp": at}))
                .collect(),
            EventKind::Display(display) => vec![result(display)],
            EventKind::Error { name, value, .. } => {
                self.failed = Some((name.clone(), value.clone()));
                Vec::new()
            }
            EventKind::Finished(outcome) => self.error(outcome).into_iter().collect(),
            EventKind::Failed(failure) => {
                let (name, value) = (failure.code.as_str(), &failure.message);
                vec![json!({"type": "error", "name": name, "value": value, "traceback": ""})]
            }
            _ => Vec::new(),
        }
    }

    fn error(&mut self, outcome: &Outcome) -> Option<Value> {
        let (name, value) = match (self.failed.take(), outcome.ended) {
            (Some(failed), _) => failed,
            (None, Ended::Exited { code: 0 }) => return None,
            (None, _) => (outcome.ended.word().to_owned(), outcome.sentence()),
        };
        let traceback = std::mem::take(&mut self.stderr);
        Some(json!({"type": "error", "name": name, "value": value, "traceback": traceback}))
    }
}

/// The marks for what was not kept, each with its stream.
fn marks(stdout_bytes: u64, stderr_bytes: u64) -> impl Iterator<Item = (&'static str, String)> {
    let lost = [("stdout", stdout_bytes), ("stderr", stderr_bytes)].into_iter();
    lost.filter(|(_, bytes)| *bytes > 0).map(|(stream, bytes)| (stream, cut_mark(bytes)))
}

fn result(display: &Display) -> Value {
    let (mut line, mut extra) = (Map::new(), Map::new());
    for (media_type, content) in &display.data {
        let content = match media_type.as_str() {
            "application/json" => serde_json::from_str(content).unwrap_or_else(|_| content.as_str().into()),
            _ => Value::from(content.as_str()),
        };
        match FORMS.iter().find(|(known, _)| known == media_type) {
            Some((_, name)) => drop(line.insert((*name).to_owned(), content)),
            None => drop(extra.insert(media_type.clone(), content)),
        }
    }
    if !extra.is_empty() {
        line.insert("extra".to_owned(), extra.into());
    }
    line.insert("type".to_owned(), "result".into());
    line.insert("is_main_result".to_owned(), (display.kind == DisplayKind::Result).into());
    line.into()
}

/// Opens the session of a language.
pub(super) async fn open(sandbox: NamedSandbox, body: RequestBody) -> Answer<Value> {
    sandbox.call.parts.runs.check_capacity(&sandbox.key.owner)?;
    let Open { language, cwd } = body.lenient().await?;
    if cwd.as_deref().map(|cwd| below_data("cwd", cwd)).transpose()?.flatten().is_some() {
        return Err(Failure::argument("cwd", "it must be /home/user: change the folder in the code").into());
    }
    Ok(Json(shown(&sandbox.session(language).await?)))
}

/// The sessions of a sandbox.
pub(super) async fn list(sandbox: NamedSandbox) -> Json<Vec<Value>> {
    let all = sandbox.call.parts.sessions.list(&sandbox.key.owner, Some(&sandbox.key.id));
    Json(all.iter().map(shown).collect())
}

/// Ends a session.
pub(super) async fn close(sandbox: NamedSandbox, Path(id): Path<String>) -> Reply<StatusCode> {
    no_content(sandbox.call.parts.sessions.close(&sandbox.key.owner, sandbox.context(&id)?.session))
}

/// A new interpreter without variables, under the same id.
pub(super) async fn restart(sandbox: NamedSandbox, Path(id): Path<String>) -> Reply<StatusCode> {
    no_content(sandbox.call.parts.sessions.restart(&sandbox.key.owner, sandbox.context(&id)?.session).await)
}

impl NamedSandbox {
    /// A session of this sandbox.
    fn context(&self, id: &str) -> Result<SessionView, Failure> {
        let missing = || Failure::new(Code::SessionNotFound, "There is no such context.");
        let id: SessionId = id.parse().map_err(|_| missing())?;
        let view = self.call.parts.sessions.get(&self.key.owner, id)?;
        Some(view).filter(|view| view.conversation == self.key).ok_or_else(missing)
    }

    /// The session of a language.
    async fn session(&self, language: Option<Language>) -> Result<SessionView, Failure> {
        self.call.parts.sessions.open_with(&self.key, &language.unwrap_or_default(), &self.setup).await
    }
}

fn shown(view: &SessionView) -> Value {
    json!({"id": view.session.to_string(), "language": view.language.as_str(), "cwd": "/home/user"})
}

#[derive(Deserialize, JsonSchema)]
struct Start {
    process: Process,
}

#[derive(Deserialize, JsonSchema)]
struct Process {
    cmd: String,
    args: Option<Vec<String>>,
    envs: Option<Environment>,
    cwd: Option<String>,
}

/// Runs a command. A client that goes away stops it.
pub(super) async fn start(sandbox: NamedSandbox, body: RequestBody) -> Reply {
    sandbox.call.parts.runs.check_capacity(&sandbox.key.owner)?;
    let bytes = body.read().await?;
    let broken = || Failure::new(Code::InvalidRequest, "The body is not one message of Connect in JSON.");
    let message = bytes.get(HEAD_BYTES..).filter(|_| bytes[0] == 0).ok_or_else(broken)?;
    let Value::Object(members) = json::read(message, VALUES_MAX).map_err(|_| broken())? else {
        return Err(broken().into());
    };
    let Start { mut process } = parse::parse(members, Source::Lenient)?;
    let limits = timeout_ms(&sandbox.call.headers).map(|wall_ms| Limits { wall_ms, ..Limits::UNBOUNDED });
    let language: Language = "bash".parse().map_err(|_| broken())?;
    let run = sandbox.call.begin(RunRequest {
        env: process.envs.take().unwrap_or_default().layered_over(sandbox.setup.env),
        network: sandbox.setup.network,
        limits,
        ..RunRequest::new(sandbox.key, language, process.program()?.into())
    });
    let renamed = |failure: Failure| failure.renamed("env", "process.envs").renamed("code", "process.args");
    let run = run.map_err(renamed)?;
    let begun = frame(0, &json!({"event": {"start": {"pid": 1}}}));
    let frames = run.events(0).map(move |event| {
        // The command lives as long as its answer.
        let _ = &run;
        match &event.kind {
            EventKind::Output(stream, bytes) => data(stream.word(), bytes),
            EventKind::Cut { stdout_bytes, stderr_bytes } => {
                marks(*stdout_bytes, *stderr_bytes).flat_map(|(stream, mark)| data(stream, mark.as_bytes())).collect()
            }
            EventKind::Finished(outcome) => [frame(0, &end(outcome)), frame(2, &json!({}))].concat(),
            EventKind::Failed(failure) => frame(2, &json!({"error": {"code": "internal", "message": failure.message}})),
            _ => Vec::new(),
        }
    });
    let frames = stream::once(future::ready(begun)).chain(frames);
    let body = Body::from_stream(frames.map(Ok::<_, Infallible>));
    Ok(([(header::CONTENT_TYPE, "application/connect+json")], body).into_response())
}

fn timeout_ms(headers: &HeaderMap) -> Option<u64> {
    headers.get("connect-timeout-ms")?.to_str().ok()?.parse().ok().filter(|ms| *ms > 0)
}

impl Process {
    /// The text for bash. The SDK sends `/bin/bash -l -c TEXT`.
    fn program(&self) -> Result<String, Failure> {
        let args = self.args.as_deref().unwrap_or_default();
        let text = match args {
            [.., flag, text] if flag == "-c" && self.cmd.ends_with("bash") => text.clone(),
            _ => std::iter::once(&self.cmd).chain(args).map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
        };
        let cwd = self.cwd.as_deref().filter(|cwd| !cwd.is_empty());
        match cwd.map(|cwd| below_data("process.cwd", cwd)).transpose()?.flatten() {
            Some(folder) => Ok(format!("cd -- {} || exit 1\n{text}", quoted(&folder.text()))),
            None => Ok(text),
        }
    }
}

/// A word for bash.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn end(outcome: &Outcome) -> Value {
    let (code, exited) = match outcome.ended {
        Ended::Exited { code } => (code, true),
        Ended::Signaled { signal } => (128 + signal, false),
        _ => (STOPPED, false),
    };
    let status = outcome.sentence();
    let error = if code == 0 { Value::Null } else { status.as_str().into() };
    json!({"event": {"end": {"exitCode": code, "exited": exited, "status": status, "error": error}}})
}

fn data(stream: &str, bytes: &[u8]) -> Vec<u8> {
    frame(0, &json!({"event": {"data": {(stream): BASE64_STANDARD.encode(bytes)}}}))
}

fn frame(flag: u8, message: &Value) -> Vec<u8> {
    let message = message.to_string();
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&[flag][..], &length, message.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dropped_output_is_marked_in_its_stream() {
        let kind = EventKind::Cut { stdout_bytes: 10, stderr_bytes: 0 };
        let mut lines = Lines { begun_unix_ms: 1_700_000_000_000, ..Lines::default() };
        let lines = lines.of(&Event { number: 1, at: Duration::from_nanos(5), kind });
        let text = "\n[… 10 bytes were not kept …]\n";
        assert_eq!(lines, [json!({"type": "stdout", "text": text, "timestamp": 1_700_000_000_000_000_005_i64})]);
    }

    #[test]
    fn a_command_becomes_one_program() {
        let of = |cmd: &str, args: &[&str], cwd: Option<&str>| {
            let args = Some(args.iter().map(ToString::to_string).collect());
            Process { cmd: cmd.to_owned(), args, envs: None, cwd: cwd.map(ToOwned::to_owned) }.program()
        };
        assert_eq!(of("/bin/bash", &["-l", "-c", "a; b"], None), Ok("a; b".to_owned()));
        assert_eq!(of("ls", &["it's", "-c"], None), Ok(r"'ls' 'it'\''s' '-c'".to_owned()));
        let inside = of("/bin/bash", &["-c", "a"], Some("/home/user/x y"));
        assert_eq!(inside, Ok("cd -- 'x y' || exit 1\na".to_owned()));
        let outside = of("ls", &[], Some("/etc")).expect_err("refused").message;
        assert!(outside.starts_with("process.cwd: "), "{outside}");
    }
}
