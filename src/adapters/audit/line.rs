//! One run, one connection, one step of sign-in, or one change by an operator, as one object of JSON. Its length is
//! bounded: ids, languages, hosts and the names of files have limits, and the number of named files has one.

use serde_json::{Value, json};

use super::Audit;
use crate::{
    domain::{
        FileEntry, Principal,
        network::{Decision, Refusal},
        text::{ms, rfc3339},
    },
    ports::observer::{AdminFacts, Observer, RunFacts, SignInFacts, ToolFacts},
};

const FILES_MAX: usize = 64;
const PATH_CHARS_MAX: usize = 256;

/// The chain adds its fields to each object. Operators parse the names of fields: add some, do not rename them.
impl Observer for Audit {
    fn run_over(&self, run: &RunFacts<'_>) {
        let stages = &run.stages;
        let outcome = run.end.ok();
        let figures = outcome.map(|outcome| &outcome.figures);
        let (exit_code, signal) = outcome.map(|outcome| outcome.ended.status_or_signal()).unwrap_or_default();
        let line = json!({
            "begun": rfc3339(run.begun_unix_s),
            "ended": rfc3339(run.ended_unix_s),
            "run": run.run.to_string(),
            "principal": run.conversation.owner.name(),
            "conversation": run.conversation.id.as_str(),
            "language": run.language.as_str(),
            "image": run.image,
            "program_sha256": run.program.sha256,
            "program_bytes": run.program.bytes.len(),
            "args": run.args,
            "stdin_bytes": run.stdin_bytes,
            "outcome": outcome.map_or("failed", |outcome| outcome.ended.word()),
            "exit_code": exit_code,
            "signal": signal,
            "failure": run.end.err().map(|failure| failure.code.as_str()),
            "limits": run.limits,
            "figures": {
                "queue_ms": stages.queue.map(ms),
                "start_ms": stages.start.map(ms),
                "stood_by": stages.stood_by,
                "wall_ms": figures.map(|figures| ms(figures.wall)),
                "total_ms": ms(stages.total),
                "cpu_ms": figures.and_then(|figures| figures.cpu).map(ms),
                "memory_peak_bytes": figures.and_then(|figures| figures.memory_peak_bytes),
                "stdout_bytes": figures.map_or(0, |figures| figures.stdout_bytes),
                "stderr_bytes": figures.map_or(0, |figures| figures.stderr_bytes),
                "oom_killed": outcome.is_some_and(|outcome| outcome.oom_killed),
            },
            "files": run.files.iter().copied().take(FILES_MAX).map(file).collect::<Vec<_>>(),
            "files_more": run.files_truncated || run.files.len() > FILES_MAX,
        });
        self.add(&line, &run.run);
    }

    /// One connection of a sandbox.
    fn connected(&self, connection: &Decision) {
        let used = &connection.used;
        let line = json!({
            "at": rfc3339(connection.at_unix_ms.div_euclid(1000)),
            "network": used.target.chars().take(PATH_CHARS_MAX).collect::<String>(),
            "refused": used.refusal.as_ref().map(Refusal::word),
            "principal": connection.conversation.owner.name(),
            "conversation": connection.conversation.id.as_str(),
            "language": connection.language.as_str(),
            "sent_bytes": used.sent_bytes,
            "received_bytes": used.received_bytes,
            "ms": ms(used.took),
        });
        self.add(&line, &connection.conversation);
    }

    /// One call of a tool. Its arguments are named by their digest.
    fn tool_called(&self, call: &ToolFacts<'_>) {
        let used = call.used;
        let line = json!({
            "at": rfc3339(call.at_unix_s),
            "tool": format!("{}/{}", used.server, used.tool),
            "ended": used.end.word(),
            "arguments_sha256": used.arguments_sha256,
            "arguments_bytes": used.arguments_bytes,
            "principal": call.conversation.owner.name(),
            "conversation": call.conversation.id.as_str(),
            "language": call.language.as_str(),
            "ms": ms(used.took),
        });
        self.add(&line, call.conversation);
    }

    /// One step of sign-in.
    fn signed_in(&self, step: &SignInFacts<'_>) {
        let line = json!({
            "at": rfc3339(step.at_unix_s),
            "sign_in": step.step,
            "client": step.client,
            "connection": step.connection.map(|id| id.to_string()),
        });
        self.add(&line, &step.step);
    }

    /// One change by an operator. Without a token it came by `MCP_API_TOKEN`.
    fn administered(&self, act: &AdminFacts<'_>) {
        let line = json!({
            "at": rfc3339(act.at_unix_s),
            "admin": act.action.word(),
            "by": act.by.name(),
            "by_token": act.by.token().map(|id| id.to_string()),
            "owner": act.owner.map(Principal::name),
            "subject": act.subject,
        });
        self.add(&line, &act.action.word());
    }
}

fn file(file: &FileEntry) -> Value {
    let path: String = file.path.display().chars().take(PATH_CHARS_MAX).collect();
    json!({"path": path, "size": file.size, "change": file.change.word()})
}
