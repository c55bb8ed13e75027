//! Traces for an OpenTelemetry collector, as OTLP over HTTP: a span for each request, run, stage and engine call that
//! is about a sandbox.
//!
//! ```text
//! Traces::start ── sender: one task; takes spans from a bounded queue and posts them; ended by `close`
//! ```
//!
//! An observed fact puts spans into the queue and never waits. A span that finds the queue full is lost and counted.
//! Spans are made from facts only, so that no log line can get into one; `spans` lists what they hold.

mod sender;
mod spans;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use opentelemetry_proto::tonic::trace::v1::Span;
use parking_lot::Mutex;
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};
use tracing::warn;

use self::sender::{LossLog, Sender};
use crate::{
    config::Collector,
    domain::{Clock, InstanceId, SandboxId, TraceContext},
    ports::observer::{AnswerFacts, CallFacts, Observer, RunFacts, TraceCounts},
};

/// Spans that wait to be sent.
const QUEUE_MAX: usize = 4096;
/// How long the last spans may take when the server stops.
const CLOSE_MAX: Duration = Duration::from_secs(1);
/// How long [`reach`] waits for a connection.
const REACH_MAX: Duration = Duration::from_secs(2);
/// Routes that machines poll every few seconds; the metrics count them.
const POLLED: [&str; 4] = ["/health", "/healthz", "/readyz", "/metrics"];
/// Sandboxes whose run is remembered. Reached only when the engine destroys none.
const HELD_MAX: usize = 10_000;

#[derive(Debug, Default)]
struct Counts {
    offered: AtomicU64,
    sent: AtomicU64,
    lost: AtomicU64,
}

pub struct Traces {
    clock: Arc<dyn Clock>,
    queue: Mutex<Option<mpsc::Sender<Span>>>,
    sender: Mutex<Option<JoinHandle<()>>>,
    /// The run of each sandbox, until it is destroyed.
    held: Mutex<HashMap<SandboxId, TraceContext>>,
    counts: Arc<Counts>,
}

impl Traces {
    /// Starts the sender.
    pub fn start(collector: Collector, instance: InstanceId, clock: Arc<dyn Clock>) -> Self {
        Self::with_queue(collector, instance, clock, QUEUE_MAX)
    }

    fn with_queue(collector: Collector, instance: InstanceId, clock: Arc<dyn Clock>, spans_max: usize) -> Self {
        let (queue, spans) = mpsc::channel(spans_max);
        let counts = Arc::<Counts>::default();
        let sender = Sender { collector, instance, spans, counts: Arc::clone(&counts), loss_log: LossLog::default() };
        let sender = tokio::spawn(sender.run());
        let (queue, sender) = (Mutex::new(Some(queue)), Mutex::new(Some(sender)));
        Self { clock, queue, sender, held: Mutex::default(), counts }
    }

    pub fn counts(&self) -> TraceCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        TraceCounts { sent: read(&self.counts.sent), lost: read(&self.counts.lost) }
    }

    /// Sends the queued spans for at most a second and ends the task. Spans that are left are lost.
    pub async fn close(&self) {
        drop(self.queue.lock().take());
        let Some(mut sender) = self.sender.lock().take() else { return };
        if timeout(CLOSE_MAX, &mut sender).await.is_ok() {
            return;
        }
        sender.abort();
        drop(sender.await);
        let offered = self.counts.offered.load(Ordering::Relaxed);
        let lost = offered.saturating_sub(self.counts.sent.load(Ordering::Relaxed));
        let before = self.counts.lost.swap(lost, Ordering::Relaxed);
        warn!(spans = lost.saturating_sub(before), "spans of traces are lost: the server stops and cannot send them");
    }

    fn offer(&self, span: Span) {
        self.counts.offered.fetch_add(1, Ordering::Relaxed);
        let queue = self.queue.lock();
        let taken = queue.as_ref().is_some_and(|queue| queue.try_send(span).is_ok());
        if !taken {
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Observer for Traces {
    fn run_over(&self, run: &RunFacts<'_>) {
        if !run.trace.is_sampled {
            return;
        }
        for span in spans::of_run(run, self.clock.unix_ns()) {
            self.offer(span);
        }
    }

    fn sandbox_held(&self, run: TraceContext, sandbox: SandboxId) {
        let mut held = self.held.lock();
        if held.len() < HELD_MAX {
            held.insert(sandbox, run);
        }
    }

    fn engine_called(&self, call: &CallFacts) {
        // Calls about no sandbox are polled every few seconds; the metrics count them.
        let Some(sandbox) = call.sandbox else { return };
        let run = {
            let mut held = self.held.lock();
            let gone = call.operation == "destroy" && call.result == "ok";
            if gone { held.remove(&sandbox) } else { held.get(&sandbox).copied() }
        };
        let trace = run.map_or_else(TraceContext::root, |run| run.child());
        if trace.is_sampled {
            self.offer(spans::of_call(call, trace, self.clock.unix_ns()));
        }
    }

    fn answered(&self, answer: &AnswerFacts<'_>) {
        let polled = answer.route.is_some_and(|route| POLLED.contains(&route));
        if answer.trace.is_sampled && !polled {
            self.offer(spans::of_answer(answer, self.clock.unix_ns()));
        }
    }
}

/// Whether the collector accepts connections.
///
/// # Errors
/// The operating system's, or a timeout after two seconds.
pub async fn reach(collector: &Collector) -> std::io::Result<()> {
    timeout(REACH_MAX, sender::connect(collector)).await??;
    Ok(())
}
