//! Traces for an OpenTelemetry collector, as OTLP over HTTP: a span for each request, run, stage and engine call that
//! is about a sandbox.
//!
//! ```text
//! Traces::start ── sender: one task; takes spans from a bounded queue and posts them; ended by `close`
//! ```
//!
//! An observed fact puts spans into the queue and never waits. A span that finds the queue full is lost and counted.
//! Spans are made from facts only, so that no log line can get into one. Attributes are fixed words, ids that the
//! server made, languages and digests of installed images, and figures: never a conversation, a path, a program, its
//! arguments, its input, its output, or the text of an error.
//!
//! ```text
//! POST /v1/runs ── run ─┬─ queue
//!                       ├─ start (a new sandbox) or take (a standby)
//!                       ├─ program
//!                       ├─ collect
//!                       └─ engine start, engine signal, engine destroy
//! ```

mod sender;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, mem::replace, sync::Arc, time::Duration};

use opentelemetry_proto::tonic::{
    common::v1::{AnyValue, KeyValue, any_value::Value},
    trace::v1::{Span, Status, span::SpanKind, status::StatusCode},
};
use parking_lot::Mutex;
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};
use tracing::warn;

use self::sender::{LossLog, Sender};
use crate::{
    config::Collector,
    domain::{
        Clock, InstanceId, Outcome, SandboxId, TraceContext,
        text::{ms, whole},
    },
    ports::observer::{AnswerFacts, CallFacts, Observer, RunFacts, Stages, TraceCounts},
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
/// The flag of a trace that is recorded (W3C Trace Context, "trace-flags").
const SAMPLED: u32 = 1;

#[derive(Debug, Default)]
struct Counts {
    offered: u64,
    counted: TraceCounts,
}

pub struct Traces {
    clock: Arc<dyn Clock>,
    /// The queue and its sender; `None` once it is closed.
    running: Mutex<Option<(mpsc::Sender<Span>, JoinHandle<()>)>>,
    /// The run of each sandbox, until it is destroyed.
    held: Mutex<HashMap<SandboxId, TraceContext>>,
    counts: Arc<Mutex<Counts>>,
}

impl Traces {
    /// Starts the sender.
    pub fn start(collector: Collector, instance: InstanceId, clock: Arc<dyn Clock>) -> Self {
        Self::with_queue(collector, instance, clock, QUEUE_MAX)
    }

    fn with_queue(collector: Collector, instance: InstanceId, clock: Arc<dyn Clock>, spans_max: usize) -> Self {
        let (queue, spans) = mpsc::channel(spans_max);
        let counts = Arc::<Mutex<Counts>>::default();
        let sender = Sender { collector, instance, counts: Arc::clone(&counts), loss_log: LossLog::default() };
        let running = Mutex::new(Some((queue, tokio::spawn(sender.run(spans)))));
        Self { clock, running, held: Mutex::default(), counts }
    }

    pub fn counts(&self) -> TraceCounts {
        self.counts.lock().counted
    }

    /// Sends the queued spans for at most a second and ends the task. Spans that are left are lost.
    pub async fn close(&self) {
        let Some((queue, mut sender)) = self.running.lock().take() else { return };
        drop(queue);
        if timeout(CLOSE_MAX, &mut sender).await.is_ok() {
            return;
        }
        sender.abort();
        drop(sender.await);
        let Counts { offered, counted } = &mut *self.counts.lock();
        let lost = offered.saturating_sub(counted.sent);
        let before = replace(&mut counted.lost, lost);
        warn!(spans = lost.saturating_sub(before), "spans of traces are lost: the server stops and cannot send them");
    }

    fn offer(&self, span: Span) {
        let mut counts = self.counts.lock();
        let is_taken = self.running.lock().as_ref().is_some_and(|(queue, _)| queue.try_send(span).is_ok());
        counts.offered += 1;
        counts.counted.lost += u64::from(!is_taken);
    }
}

impl Observer for Traces {
    fn run_over(&self, run: &RunFacts<'_>) {
        if !run.trace.is_sampled {
            return;
        }
        for span in of_run(run, self.clock.unix_ns()) {
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
            self.offer(of_call(call, trace, self.clock.unix_ns()));
        }
    }

    fn answered(&self, answer: &AnswerFacts<'_>) {
        let polled = answer.route.is_some_and(|route| POLLED.contains(&route));
        if answer.trace.is_sampled && !polled {
            self.offer(of_answer(answer, self.clock.unix_ns()));
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

fn of_answer(answer: &AnswerFacts<'_>, end_ns: u64) -> Span {
    let AnswerFacts { request, trace, method, route, status, took, .. } = *answer;
    let name = route.map_or_else(|| method.to_owned(), |route| format!("{method} {route}"));
    let mut span = span(name, SpanKind::Server, trace, end_ns, took);
    span.attributes = vec![
        text("http.request.method", method),
        number("http.response.status_code", status.into()),
        text("sandbox.request", request.to_string()),
    ];
    span.attributes.extend(route.map(|route| text("http.route", route)));
    span.status = (status >= 500).then(|| error(""));
    span
}

fn of_call(call: &CallFacts, trace: TraceContext, end_ns: u64) -> Span {
    let mut span = span(format!("engine {}", call.operation), SpanKind::Client, trace, end_ns, call.took);
    span.attributes =
        vec![text("sandbox.engine.operation", call.operation), text("sandbox.engine.result", call.result)];
    span.attributes.extend(call.sandbox.map(|id| text("sandbox.id", id.to_string())));
    span.status = (call.result != "ok").then(|| error(call.result));
    span
}

/// The span of the run after those of its stages.
fn of_run(run: &RunFacts<'_>, end_ns: u64) -> Vec<Span> {
    let mut whole = span("run".to_owned(), SpanKind::Internal, run.trace, end_ns, run.stages.total);
    whole.attributes = vec![
        text("sandbox.run", run.run.to_string()),
        text("sandbox.principal", run.conversation.owner.name()),
        text("sandbox.language", run.language.as_str()),
        text("sandbox.image", run.image),
        text("sandbox.outcome", run.end.map_or("failed", |outcome| outcome.ended.word())),
        flag("sandbox.stood_by", run.stages.stood_by),
    ];
    match run.end {
        Ok(outcome) => whole.attributes.extend(figures(outcome)),
        Err(failure) => {
            whole.attributes.push(text("sandbox.failure", failure.code.as_str()));
            whole.status = Some(error(failure.code.as_str()));
        }
    }
    let mut spans = stages(&run.stages, run.trace, whole.start_time_unix_nano);
    spans.push(whole);
    spans
}

fn figures(outcome: &Outcome) -> Vec<KeyValue> {
    let known = &outcome.figures;
    let mut all = vec![
        number("sandbox.wall_ms", whole(ms(known.wall))),
        number("sandbox.stdout_bytes", whole(known.stdout_bytes)),
        number("sandbox.stderr_bytes", whole(known.stderr_bytes)),
        number("sandbox.files", whole(known.files)),
        flag("sandbox.oom_killed", outcome.oom_killed),
    ];
    all.extend(known.cpu.map(|cpu| number("sandbox.cpu_ms", whole(ms(cpu)))));
    all.extend(known.memory_peak_bytes.map(|bytes| number("sandbox.memory_peak_bytes", whole(bytes))));
    let (exit_code, signal) = outcome.ended.status_or_signal();
    all.extend(exit_code.map(|code| number("sandbox.exit_code", code.into())));
    all.extend(signal.map(|signal| number("sandbox.signal", signal.into())));
    all
}

/// Each stage begins where the previous one ended.
fn stages(stages: &Stages, run: TraceContext, begun_ns: u64) -> Vec<Span> {
    let mut at_ns = begun_ns;
    let each = stages.reached().map(|(name, took)| {
        at_ns = at_ns.saturating_add(ns(took));
        span(name.to_owned(), SpanKind::Internal, run.child(), at_ns, took)
    });
    each.collect()
}

fn span(name: String, kind: SpanKind, trace: TraceContext, end_ns: u64, took: Duration) -> Span {
    Span {
        trace_id: trace.trace_id.to_vec(),
        span_id: trace.span_id.to_vec(),
        parent_span_id: trace.parent_id.map(|id| id.to_vec()).unwrap_or_default(),
        name,
        kind: kind.into(),
        start_time_unix_nano: end_ns.saturating_sub(ns(took)),
        end_time_unix_nano: end_ns,
        flags: SAMPLED,
        ..Span::default()
    }
}

fn error(message: &str) -> Status {
    Status { message: message.to_owned(), code: StatusCode::Error.into() }
}

fn text(key: &str, value: impl Into<String>) -> KeyValue {
    attribute(key, Value::StringValue(value.into()))
}

fn number(key: &str, value: i64) -> KeyValue {
    attribute(key, Value::IntValue(value))
}

fn flag(key: &str, value: bool) -> KeyValue {
    attribute(key, Value::BoolValue(value))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
