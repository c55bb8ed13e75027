//! Cells, answered as they run: a JSON object a line. A context is a session; a sandbox has one for each language.

use axum::{
    Json,
    body::Body,
    http::{StatusCode, header},
    response::IntoResponse as _,
};
use futures_util::{StreamExt as _, future};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{InSandbox, below_data};
use crate::{
    api::http::{Answer, Reply, body::RequestBody, no_content, parts::Path},
    domain::{
        error::{Code, Failure},
        event::{Display, DisplayKind, Event, EventKind, StreamKind},
        id::{Language, SessionId},
        outcome::{Ended, Outcome},
        text::cut_mark,
    },
    services::{
        runs::{CellSession, RunRequest},
        sessions::SessionView,
    },
};

/// What an answer repeats of a traceback, in bytes.
const TRACEBACK_BYTES_MAX: usize = 64 << 10;

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
pub(super) async fn execute(sandbox: InSandbox, body: RequestBody) -> Reply {
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
    let (InSandbox { call, key, .. }, SessionView { session, language, .. }) = (sandbox, view);
    let run = call.begin(RunRequest {
        session: Some(CellSession::Open(session)),
        ..RunRequest::new(key.clone(), language, code.into())
    })?;
    let mut lines = Lines { begun_unix_ms: run.id().unix_ms(), ..Lines::default() };
    let lines = run.events(0).map(move |event| {
        let mut text = String::new();
        for line in lines.of(&event) {
            text.push_str(&line.to_string());
            text.push('\n');
        }
        if event.kind.is_last() {
            let cells = call.parts.sessions.get(&key.owner, session).map_or(1, |view| view.cells);
            let count = json!({"type": "number_of_executions", "execution_count": cells});
            text = format!("{count}\n{text}{}\n", json!({"type": "end_of_execution"}));
        }
        // The cell lives as long as its answer.
        let _ = &run;
        text
    });
    let lines = lines.filter(|text| future::ready(!text.is_empty())).map(Ok::<_, std::convert::Infallible>);
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
            EventKind::Output(StreamKind::Stdout, bytes) => {
                vec![json!({"type": "stdout", "text": String::from_utf8_lossy(bytes), "timestamp": at})]
            }
            EventKind::Output(StreamKind::Stderr, bytes) => {
                let text = String::from_utf8_lossy(bytes);
                if self.stderr.len() + text.len() <= TRACEBACK_BYTES_MAX {
                    self.stderr.push_str(&text);
                }
                vec![json!({"type": "stderr", "text": text, "timestamp": at})]
            }
            EventKind::Cut { stdout_bytes, stderr_bytes } => {
                let lost = [("stdout", *stdout_bytes), ("stderr", *stderr_bytes)].into_iter();
                let lost = lost.filter(|(_, bytes)| *bytes > 0);
                lost.map(|(kind, bytes)| json!({"type": kind, "text": cut_mark(bytes), "timestamp": at})).collect()
            }
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
pub(super) async fn open(sandbox: InSandbox, body: RequestBody) -> Answer<Value> {
    sandbox.call.parts.runs.check_capacity(&sandbox.key.owner)?;
    let Open { language, cwd } = body.lenient().await?;
    if cwd.as_deref().map(below_data).transpose()?.flatten().is_some() {
        return Err(Failure::argument("cwd", "it must be /home/user: change the folder in the code").into());
    }
    Ok(Json(shown(&sandbox.session(language).await?)))
}

/// The sessions of a sandbox.
pub(super) async fn list(sandbox: InSandbox) -> Json<Vec<Value>> {
    let all = sandbox.call.parts.sessions.list(&sandbox.key.owner, Some(&sandbox.key.id));
    Json(all.iter().map(shown).collect())
}

/// Ends a session.
pub(super) async fn close(sandbox: InSandbox, Path(id): Path<String>) -> Reply<StatusCode> {
    no_content(sandbox.call.parts.sessions.close(&sandbox.key.owner, sandbox.context(&id)?.session))
}

/// A new interpreter without variables, under the same id.
pub(super) async fn restart(sandbox: InSandbox, Path(id): Path<String>) -> Reply<StatusCode> {
    no_content(sandbox.call.parts.sessions.restart(&sandbox.key.owner, sandbox.context(&id)?.session).await)
}

impl InSandbox {
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
}
