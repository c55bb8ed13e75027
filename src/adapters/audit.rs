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

mod chain;
mod file;
mod line;
mod verify;
mod writer;

use std::{
    fmt::Display,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{SyncSender, sync_channel},
    },
    thread::JoinHandle,
};

use parking_lot::Mutex;
use tracing::error;

pub use self::verify::{Broken, Verified, VerifyError, verify};
use self::{file::LogFile, writer::Writer};
use crate::ports::observer::{AdminFacts, AuditCounts, NetworkFacts, Observer, RunFacts, SignInFacts, ToolFacts};

/// Lines that wait to be written, and their bytes: names of files make lines long.
const QUEUE_MAX: usize = 4096;
const QUEUE_BYTES_MAX: usize = 16 << 20;

#[derive(Debug, Default)]
struct Counts {
    counted: Mutex<AuditCounts>,
    /// Of the lines in the queue and the one that is being written.
    waiting_bytes: AtomicUsize,
    /// A failed write is not tried again.
    closing: AtomicBool,
}

pub struct Audit {
    queue: Mutex<Option<SyncSender<String>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
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
        let writer = Writer { file, lines, counts: Arc::clone(&counts) };
        let thread = std::thread::Builder::new().name("audit".to_owned()).spawn(move || writer.run())?;
        Ok(Self { queue: Mutex::new(Some(queue)), writer: Mutex::new(Some(thread)), counts })
    }

    pub fn counts(&self) -> AuditCounts {
        *self.counts.counted.lock()
    }

    /// Queues a line about a subject. One that finds no room is counted and logged.
    fn add(&self, line: String, subject: &dyn Display) {
        if !self.try_queue(line) {
            self.counts.counted.lock().lost += 1;
            error!(%subject, "a line of the audit log is lost: the queue is full");
        }
    }

    fn try_queue(&self, line: String) -> bool {
        let (queue, bytes, waiting) = (self.queue.lock(), line.len(), &self.counts.waiting_bytes);
        let fits = waiting.fetch_add(bytes, Ordering::Relaxed) + bytes <= QUEUE_BYTES_MAX;
        let is_queued = fits && queue.as_ref().is_some_and(|queue| queue.try_send(line).is_ok());
        if !is_queued {
            waiting.fetch_sub(bytes, Ordering::Relaxed);
        }
        is_queued
    }

    /// Writes the queued lines and ends the thread. Blocks. A line that still cannot be written is lost.
    pub fn close(&self) {
        drop(self.queue.lock().take());
        self.counts.closing.store(true, Ordering::SeqCst);
        let writer = self.writer.lock().take();
        let Some(writer) = writer else { return };
        writer.thread().unpark();
        if writer.join().is_err() {
            error!("the writer of the audit log panicked: lines may be lost");
        }
    }
}

impl Observer for Audit {
    fn run_over(&self, run: &RunFacts<'_>) {
        self.add(line::of(run), &run.run);
    }

    fn connected(&self, connection: &NetworkFacts<'_>) {
        self.add(line::of_connection(connection), connection.conversation);
    }

    fn tool_called(&self, call: &ToolFacts<'_>) {
        self.add(line::of_tool(call), call.conversation);
    }

    fn signed_in(&self, step: &SignInFacts<'_>) {
        self.add(line::of_sign_in(step), &step.step);
    }

    fn administered(&self, act: &AdminFacts<'_>) {
        self.add(line::of_admin(act), &act.action.word());
    }
}

#[cfg(test)]
mod tests;
