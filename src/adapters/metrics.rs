//! Every metric, in one place, as `OpenMetrics` text. It must not know how the text is served.
//!
//! Labels are fixed words, the languages of installed runners, or HTTP status codes: never an id, a path or anything
//! else that a client chooses, so that the number of series is bounded.

mod process;

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{
        counter::Counter,
        family::{Family, MetricConstructor},
        gauge::Gauge,
        histogram::Histogram,
        info::Info,
    },
    registry::{Registry, Unit},
};

use self::process::Process;
use crate::{
    domain::{error::Code, owner::Principal},
    ports::observer::{AnswerFacts, AuditCounts, CallFacts, Observer, RunFacts, Standing, TraceCounts},
};

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Histogram buckets, from a millisecond, which taking a standby takes, to ten times the default limit of a run.
const SECONDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Run {
    language: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InStage {
    stage: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfStream {
    stream: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    operation: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answer {
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StandsBy {
    language: String,
    stage: &'static str,
}

#[derive(Clone)]
struct Buckets;

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(SECONDS)
    }
}

type Histograms<L> = Family<L, Histogram, Buckets>;

pub struct Metrics {
    registry: Registry,
    runs: Family<Run, Counter>,
    failures: Family<Reason, Counter>,
    refusals: Family<Reason, Counter>,
    stages: Histograms<InStage>,
    output: Family<OfStream, Counter>,
    calls: Histograms<Call>,
    answers: Family<Answer, Counter>,
    answer_time: Histogram,
    answer_bytes: Counter,
    gauges: Mutex<Gauges>,
}

/// Values that are set when the text is made.
#[derive(Default)]
struct Gauges {
    slots: Gauge,
    slots_taken: Gauge,
    waiting: Gauge,
    under_way: Gauge,
    leased: Gauge,
    unwanted: Gauge,
    languages: Gauge,
    standbys: Family<StandsBy, Gauge>,
    standbys_taken: Counter,
    audit_lines: Counter,
    audit_lost: Counter,
    audit_errors: Counter,
    spans: Counter,
    spans_lost: Counter,
    process: Process,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            runs: Family::default(),
            failures: Family::default(),
            refusals: Family::default(),
            stages: Family::new_with_constructor(Buckets),
            output: Family::default(),
            calls: Family::new_with_constructor(Buckets),
            answers: Family::default(),
            answer_time: Histogram::new(SECONDS),
            answer_bytes: Counter::default(),
            gauges: Mutex::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    fn register(&mut self) {
        let gauges = self.gauges.get_mut().unwrap_or_else(PoisonError::into_inner);
        gauges.process.register(&mut self.registry);
        let all = self.registry.sub_registry_with_prefix("sandbox");
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        all.register("build", "Which server this is", version);
        all.register("runs", "Runs that are over, by how they ended", self.runs.clone());
        all.register("run_failures", "Runs that failed for a reason of the server's", self.failures.clone());
        all.register("refusals", "Runs that were refused before they began", self.refusals.clone());
        all.register_with_unit("run_stage", "How long each stage of a run took", Unit::Seconds, self.stages.clone());
        all.register_with_unit("run_output", "What programs printed", Unit::Bytes, self.output.clone());
        all.register_with_unit("engine_call", "Calls of the container engine", Unit::Seconds, self.calls.clone());
        all.register("http_answers", "HTTP requests that were answered", self.answers.clone());
        all.register_with_unit(
            "http_answer",
            "How long HTTP requests took to be answered",
            Unit::Seconds,
            self.answer_time.clone(),
        );
        all.register_with_unit(
            "http_answer_body",
            "Bodies of HTTP answers that are no streams",
            Unit::Bytes,
            self.answer_bytes.clone(),
        );
        all.register("slots", "Programs that may run at once", gauges.slots.clone());
        all.register("slots_taken", "Slots that are taken", gauges.slots_taken.clone());
        all.register("queue_length", "Runs that wait for a turn or a slot", gauges.waiting.clone());
        all.register("runs_under_way", "Runs that wait or run", gauges.under_way.clone());
        all.register("sandboxes_held", "Sandboxes of runs and standbys", gauges.leased.clone());
        all.register("sandboxes_unwanted", "Sandboxes that are being destroyed", gauges.unwanted.clone());
        all.register("languages", "Languages that can be run now", gauges.languages.clone());
        all.register("standbys", "Sandboxes that stand by", gauges.standbys.clone());
        all.register("standbys_taken", "Runs that were served by a standby", gauges.standbys_taken.clone());
        all.register("audit_lines", "Lines of the audit log that were written", gauges.audit_lines.clone());
        all.register("audit_lines_lost", "Lines of the audit log that were given up", gauges.audit_lost.clone());
        all.register("audit_write_errors", "Writes to the audit log that failed", gauges.audit_errors.clone());
        all.register("trace_spans", "Spans that the collector took", gauges.spans.clone());
        all.register("trace_spans_lost", "Spans that were given up", gauges.spans_lost.clone());
    }

    /// All metrics as text.
    pub fn text(&self, now: &Standing, audit: AuditCounts, traces: TraceCounts) -> String {
        // Locked until the text is made, so that two concurrent scrapes do not mix their values.
        let gauges = self.gauges.lock().unwrap_or_else(PoisonError::into_inner);
        gauges.set(now, audit, traces);
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    fn stage(&self, stage: &'static str, took: Option<Duration>) {
        if let Some(took) = took {
            self.stages.get_or_create(&InStage { stage }).observe(took.as_secs_f64());
        }
    }
}

impl Gauges {
    fn set(&self, now: &Standing, audit: AuditCounts, traces: TraceCounts) {
        let set = |gauge: &Gauge, value: usize| {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        };
        set(&self.slots, now.slots);
        set(&self.slots_taken, now.slots_taken);
        set(&self.waiting, now.waiting);
        set(&self.under_way, now.under_way);
        set(&self.leased, now.leased);
        set(&self.unwanted, now.unwanted);
        set(&self.languages, now.languages);
        self.standbys.clear();
        for (language, stage, count) in &now.standbys {
            set(&self.standbys.get_or_create(&StandsBy { language: language.to_string(), stage }), *count);
        }
        raise(&self.standbys_taken, now.standbys_taken);
        raise(&self.audit_lines, audit.written);
        raise(&self.audit_lost, audit.lost);
        raise(&self.audit_errors, audit.errors);
        raise(&self.spans, traces.sent);
        raise(&self.spans_lost, traces.lost);
        self.process.set();
    }
}

/// Raises a counter to a total that is counted elsewhere.
fn raise(counter: &Counter, value: u64) {
    counter.inc_by(value.saturating_sub(counter.get()));
}

impl Observer for Metrics {
    fn run_over(&self, run: &RunFacts<'_>) {
        // The self-test is no run of a user.
        if run.principal == Principal::self_test().name() {
            return;
        }
        let outcome = run.end.map_or("failed", |outcome| outcome.ended.word());
        self.runs.get_or_create(&Run { language: run.language.to_string(), outcome }).inc();
        match run.end {
            Ok(outcome) => {
                let figures = &outcome.figures;
                self.output.get_or_create(&OfStream { stream: "stdout" }).inc_by(figures.stdout_bytes);
                self.output.get_or_create(&OfStream { stream: "stderr" }).inc_by(figures.stderr_bytes);
            }
            Err(failure) => {
                self.failures.get_or_create(&Reason { code: failure.code.as_str() }).inc();
            }
        }
        let stages = &run.stages;
        self.stage("queue", stages.queue);
        self.stage(if stages.stood_by { "take" } else { "start" }, stages.start);
        self.stage("program", stages.program);
        self.stage("collect", stages.collect);
        self.stage("total", Some(stages.total));
    }

    fn refused(&self, code: Code) {
        self.refusals.get_or_create(&Reason { code: code.as_str() }).inc();
    }

    fn engine_called(&self, call: &CallFacts) {
        let CallFacts { operation, result, took, .. } = *call;
        self.calls.get_or_create(&Call { operation, result }).observe(took.as_secs_f64());
    }

    fn answered(&self, answer: &AnswerFacts<'_>) {
        self.answers.get_or_create(&Answer { status: answer.status }).inc();
        self.answer_time.observe(answer.took.as_secs_f64());
        self.answer_bytes.inc_by(answer.bytes.unwrap_or(0));
    }
}
