//! Every metric, in one place, as `OpenMetrics` text. It must not know how the text is served.
//!
//! Labels are fixed words, the languages of installed runners, or HTTP status codes: never an id, a path or anything
//! else that a client chooses, so that the number of series is bounded.

use std::hash::Hash;

use prometheus_client::{
    encoding::text::{encode_eof, encode_registry},
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::Histogram,
        info::Info,
    },
    registry::{Metric, Registry, Unit},
};
use rustix::param::{clock_ticks_per_second, page_size};

use crate::{
    domain::{Code, Language, network::Decision, text::whole},
    ports::observer::{
        AnswerFacts, AuditCounts, CallFacts, HistoryCounts, Observer, RunFacts, ServerGauges, ToolFacts, TraceCounts,
    },
};

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Histogram buckets, from a millisecond, which taking a standby takes, to ten times the default limit of a run.
const SECONDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

const ANSWER_BODIES: &str = "Bodies of HTTP answers that are no streams";

/// Names and values of the labels of one series.
type Labels<const N: usize, V = &'static str> = [(&'static str, V); N];

pub struct Metrics {
    registry: Registry,
    runs: Family<Labels<2, String>, Counter>,
    failures: Family<Labels<1>, Counter>,
    refusals: Family<Labels<1>, Counter>,
    runner_changes: Family<Labels<1, String>, Counter>,
    stages: Family<Labels<1>, Histogram>,
    output: Family<Labels<1>, Counter>,
    calls: Family<Labels<2>, Histogram>,
    connections: Family<Labels<1>, Counter>,
    network: Family<Labels<1>, Counter>,
    tool_calls: Family<Labels<1>, Counter>,
    tool_time: Histogram,
    answers: Family<Labels<1, u16>, Counter>,
    answer_time: Histogram,
    answer_bytes: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let all = registry.sub_registry_with_prefix("sandbox");
        all.register("build", "Which server this is", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        Self {
            runs: add(all, "runs", "Runs that are over, by how they ended"),
            failures: add(all, "run_failures", "Runs that failed for a reason of the server's"),
            refusals: add(all, "refusals", "Runs that were refused before they began"),
            runner_changes: add(all, "runner_changes", "Languages that got another image"),
            stages: with_unit(all, "run_stage", "How long each stage of a run took", Unit::Seconds, histograms()),
            output: with_unit(all, "run_output", "What programs printed", Unit::Bytes, Family::default()),
            calls: with_unit(all, "engine_call", "Calls of the container engine", Unit::Seconds, histograms()),
            connections: add(all, "network_connections", "Connections of programs, by what came of them"),
            network: with_unit(all, "network", "What programs sent and received", Unit::Bytes, Family::default()),
            tool_calls: add(all, "tool_calls", "Calls of tools by programs, by how they ended"),
            tool_time: with_unit(all, "tool_call", "How long calls of tools took", Unit::Seconds, histogram()),
            answers: add(all, "http_answers", "HTTP requests that were answered"),
            answer_time: with_unit(all, "http_answer", "How long HTTP answers took", Unit::Seconds, histogram()),
            answer_bytes: with_unit(all, "http_answer_body", ANSWER_BODIES, Unit::Bytes, Counter::default()),
            registry,
        }
    }
}

/// Metrics whose values are known when the text is made.
fn current_values(now: &ServerGauges, audit: AuditCounts, traces: TraceCounts, history: HistoryCounts) -> Registry {
    let mut registry = Registry::default();
    add_process(&mut registry);
    let all = registry.sub_registry_with_prefix("sandbox");
    let of_owner = now.sessions.owner_memory_bytes_max;
    for (name, help, value) in [
        ("slots", "Programs that may run at once", whole(now.load.slots)),
        ("slots_taken", "Slots that are taken", whole(now.load.slots_taken)),
        ("queue_length", "Runs that wait for a turn or a slot", whole(now.load.waiting)),
        ("runs_under_way", "Runs that wait or run", whole(now.under_way)),
        ("owners", "Owners with runs that wait or run", whole(now.load.owners)),
        ("owner_runs_max", "Runs that wait or run of the owner with the most", whole(now.load.owner_runs_max)),
        ("sessions", "Open sessions", whole(now.sessions.open)),
        ("sandboxes_held", "Sandboxes of runs and standbys", whole(now.leased)),
        ("sandboxes_unwanted", "Sandboxes that are being destroyed", whole(now.unwanted)),
        ("languages", "Languages that can be run now", whole(now.languages)),
        ("packages_trees", "Results of installations that are kept", whole(now.packages.trees)),
        ("packages_bytes", "Disk space of those, in bytes", whole(now.packages.bytes)),
        ("sessions_memory_bytes", "Memory limits of open sessions together", whole(now.sessions.memory_bytes)),
        ("owner_sessions_memory_bytes_max", "Those of the owner with the most", whole(of_owner)),
    ] {
        all.register(name, help, ConstGauge::new(value));
    }
    let standbys: Family<Labels<2, String>, Gauge> = add(all, "standbys", "Sandboxes that stand by");
    for (language, stage, count) in &now.standbys {
        let labels = [("language", language.to_string()), ("stage", (*stage).to_owned())];
        standbys.get_or_create(&labels).set(whole(*count));
    }
    for (name, help, value) in [
        ("standbys_taken", "Runs that were served by a standby", now.standbys_taken),
        ("audit_lines", "Lines of the audit log that were written", audit.written),
        ("audit_lines_lost", "Lines of the audit log that were given up", audit.lost),
        ("audit_write_errors", "Writes to the audit log that failed", audit.errors),
        ("packages_made", "Installations of packages that were made", now.packages.made),
        ("packages_reused", "Installations for which an earlier one was used", now.packages.reused),
        ("packages_failed", "Installations of packages that failed", now.packages.failed),
        ("trace_spans", "Spans that the collector took", traces.sent),
        ("trace_spans_lost", "Spans that were given up", traces.lost),
        ("history_lines", "Lines of the history that were stored", history.written),
        ("history_lost", "Lines of the history that were given up", history.lost),
        ("history_errors", "Calls of the database for the history that failed", history.errors),
        ("idempotency_keys_unstored", "Runs that began before their key was stored", history.keys_unstored),
        (
            "file_changes_unannounced",
            "Failures to tell other servers which files changed",
            now.file_changes_unannounced,
        ),
    ] {
        all.register(name, help, ConstCounter::new(value));
    }
    registry
}

/// Registers what this process uses, under the usual names of Prometheus clients, as far as `/proc` has it.
fn add_process(registry: &mut Registry) {
    let all = registry.sub_registry_with_prefix("process");
    let mut gauge = |name: &str, help: &str, value: i64| all.register(name, help, ConstGauge::new(value));
    if let Ok(folder) = std::fs::read_dir("/proc/self/fd") {
        gauge("open_fds", "Open file descriptors", whole(folder.count()));
    }
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is the name in brackets and may hold anything; the third is the first after it.
    let fields: Vec<i64> = stat
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect())
        .unwrap_or_default();
    let &[user, system, _, _, _, _, threads, _, _, virtual_bytes, pages] = fields.get(11..22).unwrap_or_default()
    else {
        return;
    };
    gauge("threads", "Threads", threads);
    gauge("virtual_memory_bytes", "Address space in use", virtual_bytes);
    let resident_bytes = pages.saturating_mul(i64::try_from(page_size()).unwrap_or(0));
    gauge("resident_memory_bytes", "Memory in use", resident_bytes);
    #[expect(clippy::cast_precision_loss, reason = "ticks stay far below 2^52")]
    let cpu_seconds = (user + system) as f64 / clock_ticks_per_second() as f64;
    all.register("cpu_seconds", "CPU time since the start", ConstCounter::new(cpu_seconds));
}

/// Registers a metric.
fn add<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

fn with_unit<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, unit: Unit, metric: M) -> M {
    registry.register_with_unit(name, help, unit, metric.clone());
    metric
}

fn histogram() -> Histogram {
    Histogram::new(SECONDS)
}

fn histograms<L: Clone + Eq + Hash>() -> Family<L, Histogram> {
    Family::new_with_constructor(histogram)
}

impl Metrics {
    /// All metrics as text.
    pub fn text(&self, now: &ServerGauges, audit: AuditCounts, traces: TraceCounts, history: HistoryCounts) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode_registry(&mut text, &self.registry);
        let _ = encode_registry(&mut text, &current_values(now, audit, traces, history));
        let _ = encode_eof(&mut text);
        text
    }
}

impl Observer for Metrics {
    fn run_over(&self, run: &RunFacts<'_>) {
        // The self-test is no run of a user.
        if run.conversation.owner.is_self_test() {
            return;
        }
        let outcome = run.end.map_or("failed", |outcome| outcome.ended.word());
        self.runs.get_or_create(&[("language", run.language.to_string()), ("outcome", outcome.to_owned())]).inc();
        match run.end {
            Ok(outcome) => {
                let figures = &outcome.figures;
                self.output.get_or_create(&[("stream", "stdout")]).inc_by(figures.stdout_bytes);
                self.output.get_or_create(&[("stream", "stderr")]).inc_by(figures.stderr_bytes);
            }
            Err(failure) => {
                self.failures.get_or_create(&[("code", failure.code.as_str())]).inc();
            }
        }
        for (stage, took) in run.stages.reached().chain([("total", run.stages.total)]) {
            self.stages.get_or_create(&[("stage", stage)]).observe(took.as_secs_f64());
        }
    }

    fn refused(&self, code: Code) {
        self.refusals.get_or_create(&[("code", code.as_str())]).inc();
    }

    fn runner_changed(&self, language: &Language) {
        self.runner_changes.get_or_create(&[("language", language.to_string())]).inc();
    }

    fn engine_called(&self, call: &CallFacts) {
        let CallFacts { operation, result, took, .. } = *call;
        self.calls.get_or_create(&[("operation", operation), ("result", result)]).observe(took.as_secs_f64());
    }

    fn connected(&self, connection: &Decision) {
        let used = &connection.used;
        let code = used.refusal.as_ref().map_or("allowed", |refusal| refusal.word());
        self.connections.get_or_create(&[("code", code)]).inc();
        self.network.get_or_create(&[("way", "sent")]).inc_by(used.sent_bytes);
        self.network.get_or_create(&[("way", "received")]).inc_by(used.received_bytes);
    }

    fn tool_called(&self, call: &ToolFacts<'_>) {
        self.tool_calls.get_or_create(&[("ended", call.used.end.word())]).inc();
        self.tool_time.observe(call.used.took.as_secs_f64());
    }

    fn answered(&self, answer: &AnswerFacts<'_>) {
        self.answers.get_or_create(&[("status", answer.status)]).inc();
        self.answer_time.observe(answer.took.as_secs_f64());
        self.answer_bytes.inc_by(answer.bytes.unwrap_or(0));
    }
}
