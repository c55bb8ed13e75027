//! Executes one cell in a session: sends it once, passes on its displays, stops it at a limit, decides how it ended.
//!
//! A cell at a limit is interrupted, and the variables stay; a kernel that does not stop is ended with its sandbox.

mod events;
mod input;

use std::{
    future::{pending, ready},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream::BoxStream;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

pub(in crate::services) use self::input::{LineMeter, TEXT_BYTES_MAX, fits};
use self::{events::Events, input::Input};
use super::{
    CellEnd, Inner, NOT_EXECUTED, OomKills, Progress, SessionEnd, Sessions, display::DisplayFile, kernel::Kernel,
    message::Channel, queue::Subscription, registry::Session,
};
use crate::{
    domain::{ConversationKey, DiskLimit, Ended, EventKind, Failure, Limits, Outcome, SessionId, StreamKind},
    ports::runner::Runner,
    services::network::Sink,
};

const FIGURES_MAX: Duration = Duration::from_secs(1);
/// When an interrupt is followed by a message that wakes a kernel which awaits something, when it is repeated, and when
/// the kernel is ended.
pub(super) const WAKE_AFTER: Duration = Duration::from_millis(300);
const AGAIN_AFTER: Duration = Duration::from_secs(1);
const KILL_AFTER: Duration = Duration::from_secs(2);

/// A cell as it is handed over.
pub(in crate::services) struct Cell<'a> {
    pub conversation: &'a ConversationKey,
    pub runner: &'a Runner,
    /// The session; any of the conversation and language, one that is opened for it included, where none is named.
    pub session: Option<SessionId>,
    pub code: &'a str,
    /// Its standard input, a line for each request; `None` when it takes none. No line of it is too long for a
    /// [message](fits), and neither is the code.
    pub input: Option<BoxStream<'a, Bytes>>,
    pub limits: &'a Limits,
    /// Cancelled when the session was restarted or closed since the cell was sent.
    pub waiting: &'a CancellationToken,
    /// Where its connections are reported.
    pub network: Sink,
}

impl Sessions {
    /// Executes a cell, once.
    ///
    /// # Errors
    /// Those of [`Sessions::open`] and [`Sessions::get`];
    /// [`Code::EngineLost`](crate::domain::error::Code::EngineLost) when it is not known how it ended.
    pub(in crate::services) async fn execute(
        &self,
        cell: Cell<'_>,
        sink: &mut (dyn FnMut(EventKind) + Send),
        cancel: &CancellationToken,
        breach: impl Future<Output = DiskLimit>,
    ) -> Result<CellEnd, Failure> {
        let (session, busy) = loop {
            let session = if let Some(id) = cell.session {
                self.0.find_to_use(&cell.conversation.owner, id)?
            } else {
                // Nothing was handed over yet. A start that is given up ends by itself, and its sandbox is destroyed.
                let session = tokio::select! {
                    biased;
                    () = cancel.cancelled() => return Ok(CellEnd::before_it_began(cell.limits)),
                    session = self.open_for_cell(cell.conversation, cell.runner) => session?,
                };
                if let Some(end) = self.0.take_news(cell.conversation, &cell.runner.language) {
                    sink(EventKind::Output(StreamKind::Stderr, format!("[{}]\n", end.sentence()).into()));
                }
                session
            };
            let busy = session.occupy();
            if !self.0.registry.ended_unused(&session) {
                break (session, busy);
            }
        };
        if cancel.is_cancelled() {
            return Ok(CellEnd::before_it_began(cell.limits));
        }
        // After the session was found: one that is opened in a restart is found after this was cancelled.
        if cell.waiting.is_cancelled() {
            sink(EventKind::Output(StreamKind::Stderr, NOT_EXECUTED.into()));
            return Ok(CellEnd::before_it_began(cell.limits));
        }
        busy.begin_cell();
        self.0.carry_in(&session).await?;
        session.kernel.reporter.to(cell.network);
        // From the beginning, so that nothing of the cell is missed.
        let subscription = session.kernel.subscribers.add();
        sink(EventKind::Started);
        let begun = Instant::now();
        let content = json!({"code": cell.code, "silent": false, "store_history": true, "user_expressions": {},
            "allow_stdin": cell.input.is_some(), "stop_on_error": false});
        // The kernel's task learns what was killed for memory before this cell.
        session.kernel.ask_figures().await;
        let request = session.kernel.send(Channel::Shell, "execute_request", None, &content).await;
        let mut execution = Execution {
            session: &session,
            subscription,
            request,
            sink,
            progress: Progress::default(),
            has_error: false,
            output_left: cell.limits.output_bytes_max,
            output_over: false,
            events: Events::default(),
            display_files: Vec::new(),
            oom_kills: OomKills::default(),
            figures: None,
            asked: None,
            input: Input::new(cell.input),
        };
        let deadline = session.kernel.reporter.waits.after(begun + cell.limits.wall());
        let gone = match execution.until_end(deadline, cancel, breach).await {
            End::Itself => None,
            End::Stopped => {
                execution.interrupt(&self.0).await;
                None
            }
            End::KernelGone => Some(execution.kernel_gone(&self.0).await),
        };
        let (ended, wall) = (execution.progress.ended(gone)?, begun.elapsed());
        let (used, oom_killed) = execution.figures().await;
        let figures = session.figures(&used, wall, cell.limits.cpu_millis);
        std::mem::take(&mut execution.events).end().for_each(&mut *execution.sink);
        for sentence in session.kernel.reporter.end() {
            (execution.sink)(EventKind::Output(StreamKind::Stderr, sentence.into()));
        }
        let display_files = std::mem::take(&mut execution.display_files);
        // It subscribes to the kernel, whose task waits for a full queue and reads the files as well.
        drop(execution);
        let returned = self.0.carry_out(&session).await;
        let outcome =
            Outcome { ended, oom_killed: oom_killed || ended == Ended::OutOfMemory, limits: *cell.limits, figures };
        Ok(CellEnd { outcome, returned, display_files })
    }
}

/// Interrupts what a kernel executes in these steps. Ends when it should have reacted.
pub(super) async fn interrupt_in_steps(kernel: &Kernel) {
    let begun = Instant::now();
    let steps = async {
        kernel.interrupt().await;
        sleep_until(begun + WAKE_AFTER).await;
        kernel.wake().await;
        sleep_until(begun + AGAIN_AFTER).await;
        kernel.interrupt().await;
        pending::<()>().await;
    };
    drop(timeout(KILL_AFTER, steps).await);
}

enum End {
    Itself,
    Stopped,
    KernelGone,
}

struct Execution<'a> {
    session: &'a Arc<Session>,
    subscription: Subscription,
    /// The id of the request.
    request: String,
    sink: &'a mut (dyn FnMut(EventKind) + Send),
    progress: Progress,
    /// Whether an error was shown.
    has_error: bool,
    output_left: u64,
    output_over: bool,
    events: Events,
    display_files: Vec<DisplayFile>,
    oom_kills: OomKills,
    /// What the bridge said last, and whether a process was killed for memory since it spoke before.
    figures: Option<(Value, bool)>,
    /// The header of the kernel's request for input that is not answered.
    asked: Option<Bytes>,
    input: Input<'a>,
}

impl Execution<'_> {
    async fn until_end(
        &mut self,
        deadline: impl Future<Output = ()>,
        cancel: &CancellationToken,
        breach: impl Future<Output = DiskLimit>,
    ) -> End {
        let (mut deadline, mut breach) = (pin!(deadline), pin!(breach));
        while !self.progress.is_complete() {
            tokio::select! {
                biased;
                () = cancel.cancelled() => return self.stop(Ended::Cancelled),
                () = &mut deadline => return self.stop(Ended::TimedOut),
                // Before the messages, which may never have to be waited for.
                limit = &mut breach => return self.stop(Ended::DiskLimit(limit)),
                line = self.input.line(), if self.asked.is_some() => self.answer(line).await,
                () = ready(()), if self.events.has_request() => self.wait_for_line(),
                message = self.subscription.next() => {
                    let Some(message) = message else { return End::KernelGone };
                    self.record(&message);
                    if self.output_over {
                        return self.stop(Ended::OutputLimit);
                    }
                }
                probe = self.progress.next_probe() => match probe {
                    Some(probe) => self.session.kernel.pass_on(probe).await,
                    None => break,
                },
            }
        }
        End::Itself
    }

    fn stop(&mut self, ended: Ended) -> End {
        if self.progress.stop(ended) { End::Stopped } else { End::Itself }
    }

    /// Answers the kernel's request for input; at the end of the input by the character that stands for it.
    async fn answer(&mut self, line: Option<String>) {
        let parent = self.asked.take();
        let event = self.events.answered();
        self.emit(event);
        let content = json!({"value": line.as_deref().unwrap_or("\u{4}")});
        self.session.kernel.send(Channel::Stdin, "input_reply", parent, &content).await;
    }

    /// No line is at hand for the kernel's request.
    fn wait_for_line(&mut self) {
        match self.events.take_request() {
            Some(event) => (self.sink)(event),
            None => self.input = Input::new(None),
        }
    }

    /// Interrupts the cell; ends the session when it does not obey. One that has replied has obeyed: its idle status
    /// can be lost when much is printed. Output from before still counts.
    async fn interrupt(&mut self, inner: &Arc<Inner>) {
        let session = self.session;
        // First in the selection: a cell that prints without a pause does not hold it up.
        let mut urging = pin!(interrupt_in_steps(&session.kernel));
        while !self.progress.is_complete() {
            tokio::select! {
                biased;
                () = &mut urging => {
                    if !self.progress.has_replied() {
                        // Before the verdict, so that the next caller does not find it.
                        let end = session.kernel.end_of_silence();
                        inner.end(session, end);
                        self.report_end(end);
                    }
                    return;
                }
                message = self.subscription.next() => {
                    let Some(message) = message else {
                        let end = inner.ended(session).await;
                        return self.report_end(end);
                    };
                    self.record(&message);
                }
                probe = self.progress.next_probe() => match probe {
                    Some(probe) => session.kernel.pass_on(probe).await,
                    None => return,
                },
            }
        }
    }

    /// How the session ended whose kernel is gone.
    async fn kernel_gone(&mut self, inner: &Arc<Inner>) -> SessionEnd {
        let end = inner.ended(self.session).await;
        if !matches!(end, SessionEnd::Kernel(_) | SessionEnd::Lost) {
            self.report_end(end);
        }
        end
    }

    /// Says after the cell's output why its session ended: the verdict only tells of the cell.
    fn report_end(&mut self, end: SessionEnd) {
        (self.sink)(EventKind::Output(StreamKind::Stderr, format!("[{}]\n", end.sentence()).into()));
    }

    /// What the session has used so far, null when the bridge does not say; and whether a process was killed for memory
    /// since the cell was handed over.
    async fn figures(&mut self) -> (Value, bool) {
        // The bridge was asked before the cell as well.
        self.figures = None;
        self.session.kernel.ask_figures().await;
        let answer = async {
            while self.figures.is_none()
                && let Some(message) = self.subscription.next().await
            {
                self.record(&message);
            }
        };
        drop(timeout(FIGURES_MAX, answer).await);
        self.figures.take().unwrap_or_default()
    }
}
