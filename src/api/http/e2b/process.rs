//! Commands: each is a program of its own in a new sandbox with the same files, answered as it runs. What a command
//! leaves running ends with it, so there are no processes to list, signal or connect to.
//!
//! The form is Connect's: JSON in frames of a flag, a length of four bytes, and the message.

use axum::{
    body::Body,
    http::{HeaderMap, header},
    response::IntoResponse as _,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures_util::StreamExt as _;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{InSandbox, below_data};
use crate::{
    api::{
        http::{Reply, body::RequestBody, json},
        schema::parse::{self, Source},
    },
    domain::{
        environment::Environment,
        error::{Code, Failure},
        event::{EventKind, StreamKind},
        id::Language,
        limits::Limits,
        outcome::{Ended, Outcome},
        text::cut_mark,
    },
    services::runs::RunRequest,
};

const VALUES_MAX: usize = 2000;
/// Of a frame before its message.
const HEAD_BYTES: usize = 5;
/// The status of a command that was stopped, as of `timeout`.
const STOPPED: i32 = 124;

#[derive(Deserialize, JsonSchema)]
struct Start {
    process: Process,
}

#[derive(Deserialize, JsonSchema)]
struct Process {
    cmd: String,
    args: Option<Vec<String>>,
    #[schemars(with = "Option<std::collections::BTreeMap<String, String>>")]
    envs: Option<Environment>,
    cwd: Option<String>,
}

/// Runs a command. A client that goes away stops it.
pub(super) async fn start(sandbox: InSandbox, body: RequestBody) -> Reply {
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
        env: process.envs.take().unwrap_or_default().over(sandbox.setup.env),
        network: sandbox.setup.network,
        limits,
        ..RunRequest::new(sandbox.key, language, process.program()?.into())
    })?;
    let begun = frame(0, &json!({"event": {"start": {"pid": 1}}}));
    let frames = run.events(0).map(move |event| {
        // The command lives as long as its answer.
        let _ = &run;
        match &event.kind {
            EventKind::Output(kind, bytes) => {
                data(if *kind == StreamKind::Stdout { "stdout" } else { "stderr" }, bytes)
            }
            EventKind::Cut { stdout_bytes, stderr_bytes } => {
                let lost = [("stdout", *stdout_bytes), ("stderr", *stderr_bytes)].into_iter();
                let lost = lost.filter(|(_, bytes)| *bytes > 0);
                lost.flat_map(|(name, bytes)| data(name, cut_mark(bytes).as_bytes())).collect()
            }
            EventKind::Finished(outcome) => [frame(0, &end(outcome)), frame(2, &json!({}))].concat(),
            EventKind::Failed(failure) => frame(2, &json!({"error": {"code": "internal", "message": failure.message}})),
            _ => Vec::new(),
        }
    });
    let frames = futures_util::stream::once(std::future::ready(begun)).chain(frames);
    let body = Body::from_stream(frames.map(Ok::<_, std::convert::Infallible>));
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
        match self.cwd.as_deref().filter(|cwd| !cwd.is_empty()).map(below_data).transpose()?.flatten() {
            Some(folder) => Ok(format!("cd -- {} || exit 1\n{text}", quoted(&folder.text()))),
            None => Ok(text),
        }
    }
}

/// A word for bash.
pub(super) fn quoted(word: &str) -> String {
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
    use super::*;

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
        assert!(of("ls", &[], Some("/etc")).is_err());
    }
}
