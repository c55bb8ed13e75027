//! The audit log: a line of JSON for each run, each step of sign-in and each change by an operator, appended to a file.
//! It never holds a program's text, its input, or a secret.
//!
//! ```text
//! Audit::open ── writer: one thread; takes lines from a bounded queue and appends them; ended by `close`
//! ```
//!
//! An observed run puts its line into the queue and never waits. Writing a line is repeated until it succeeds;
//! meanwhile the queue fills, up to a number of lines and of bytes. A line that finds the queue full, or that is left
//! when the server stops, is counted as lost and logged. The file is created again after it was moved away, so that
//! rotation needs no signal. The lines form a chain, which [`verify`] checks.

mod file;

use std::{
    fmt::Display,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tracing::{error, info};

use self::file::LogFile;
pub use self::file::{ChainBreak, Verified, VerifyError, check, verify};
use crate::{
    domain::{
        FileEntry, Principal,
        network::{Decision, Refusal},
        text::{ms, rfc3339},
    },
    ports::observer::{AdminFacts, AuditCounts, Observer, RunFacts, SignInFacts, ToolFacts},
};

/// Lines that wait to be written, and their bytes: names of files make lines long.
const QUEUE_MAX: usize = 4096;
const QUEUE_BYTES_MAX: usize = 16 << 20;
/// The pause before a failed write is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// Files that one line names, and the characters of a path or host in it. Ids and languages have limits of their own,
/// so the length of a line is bounded.
const FILES_MAX: usize = 64;
const PATH_CHARS_MAX: usize = 256;

#[derive(Debug, Default)]
struct Counts {
    counted: Mutex<AuditCounts>,
    /// Bytes of the lines in the queue and of the one that is being written.
    waiting_bytes: AtomicUsize,
    /// A failed write is not tried again.
    closing: AtomicBool,
}

pub struct Audit {
    /// The queue and its writer; `None` once it is closed.
    running: Mutex<Option<(SyncSender<String>, JoinHandle<()>)>>,
    counts: Arc<Counts>,
}

impl Audit {
    /// Opens the file for appending, or creates it with mode 0600.
    ///
    /// # Errors
    /// When it cannot be opened or is not a regular file.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        Self::with_queue(path, QUEUE_MAX)
    }

    fn with_queue(path: &Path, lines_max: usize) -> std::io::Result<Self> {
        let file = LogFile::open(path)?;
        let (queue, lines) = sync_channel(lines_max);
        let counts = Arc::<Counts>::default();
        let counted = Arc::clone(&counts);
        let writer = move || write_all(&file, &lines, &counted);
        let thread = std::thread::Builder::new().name("audit".to_owned()).spawn(writer)?;
        Ok(Self { running: Mutex::new(Some((queue, thread))), counts })
    }

    pub fn counts(&self) -> AuditCounts {
        *self.counts.counted.lock()
    }

    /// Queues a line about a subject. One that finds no room is counted and logged.
    fn add(&self, line: &Value, subject: &dyn Display) {
        if !self.try_queue(line.to_string()) {
            self.counts.counted.lock().lost += 1;
            error!(%subject, "a line of the audit log is lost: the queue is full");
        }
    }

    fn try_queue(&self, line: String) -> bool {
        let (running, bytes, waiting) = (self.running.lock(), line.len(), &self.counts.waiting_bytes);
        let fits = waiting.fetch_add(bytes, Ordering::Relaxed) + bytes <= QUEUE_BYTES_MAX;
        let is_queued = fits && running.as_ref().is_some_and(|(queue, _)| queue.try_send(line).is_ok());
        if !is_queued {
            waiting.fetch_sub(bytes, Ordering::Relaxed);
        }
        is_queued
    }

    /// Writes the queued lines and ends the thread. Blocks. A line that still cannot be written is lost.
    pub fn close(&self) {
        let Some((queue, writer)) = self.running.lock().take() else { return };
        drop(queue);
        self.counts.closing.store(true, Ordering::SeqCst);
        writer.thread().unpark();
        if writer.join().is_err() {
            error!("the writer of the audit log panicked: lines may be lost");
        }
    }
}

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

/// Writes until the queue is closed and empty.
fn write_all(file: &LogFile, lines: &Receiver<String>, counts: &Counts) {
    let mut failing = false;
    for line in lines {
        failing = write(file, &line, counts, failing);
        counts.waiting_bytes.fetch_sub(line.len(), Ordering::Relaxed);
    }
}

/// Tries until the line is written or the server stops. Returns whether it failed.
fn write(file: &LogFile, line: &str, counts: &Counts, mut failing: bool) -> bool {
    while let Err(error) = file.append(line) {
        counts.counted.lock().errors += 1;
        if !failing {
            error!(%error, "the audit log cannot be written; lines wait: free space, or repair its folder");
        }
        failing = true;
        if counts.closing.load(Ordering::SeqCst) {
            counts.counted.lock().lost += 1;
            error!("a line of the audit log is lost: the server stops and cannot write it");
            return true;
        }
        std::thread::park_timeout(RETRY);
    }
    if failing {
        info!("the audit log is written again");
    }
    counts.counted.lock().written += 1;
    false
}

#[cfg(test)]
mod tests;
