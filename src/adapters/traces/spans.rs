//! Facts as spans. Pure. Attributes are fixed words, ids that the server made, languages and digests of installed
//! images, and figures: never a conversation, a path, a program, its arguments, its input, its output, or the text of
//! an error.
//!
//! ```text
//! POST /v1/runs ── run ─┬─ queue
//!                       ├─ start (a new sandbox) or take (a standby)
//!                       ├─ program
//!                       ├─ collect
//!                       └─ engine start, engine signal, engine destroy
//! ```

use std::time::Duration;

use opentelemetry_proto::tonic::{
    common::v1::{AnyValue, KeyValue, any_value::Value},
    trace::v1::{Span, Status, span::SpanKind, status::StatusCode},
};

use crate::{
    domain::{
        Outcome, TraceContext,
        text::{ms, whole},
    },
    ports::observer::{AnswerFacts, CallFacts, RunFacts, Stages},
};

/// The flag of a trace that is recorded (W3C Trace Context, "trace-flags").
const SAMPLED: u32 = 1;

pub(super) fn of_answer(answer: &AnswerFacts<'_>, end_ns: u64) -> Span {
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

pub(super) fn of_call(call: &CallFacts, trace: TraceContext, end_ns: u64) -> Span {
    let mut span = span(format!("engine {}", call.operation), SpanKind::Client, trace, end_ns, call.took);
    span.attributes =
        vec![text("sandbox.engine.operation", call.operation), text("sandbox.engine.result", call.result)];
    span.attributes.extend(call.sandbox.map(|id| text("sandbox.id", id.to_string())));
    span.status = (call.result != "ok").then(|| error(call.result));
    span
}

/// The span of the run after those of its stages.
pub(super) fn of_run(run: &RunFacts<'_>, end_ns: u64) -> Vec<Span> {
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

pub(super) fn text(key: &str, value: impl Into<String>) -> KeyValue {
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
