//! The task that takes spans from the queue and posts them in batches. Spans that the collector does not accept are
//! lost; they are counted, and logged at most once a minute.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::InstrumentationScope,
    resource::v1::Resource,
    trace::v1::{ResourceSpans, ScopeSpans, Span},
};
use prost::Message as _;
use tokio::{
    sync::mpsc::Receiver,
    time::{Instant, sleep},
};
use tracing::{info, warn};

use super::{Counts, post::post, spans::text};
use crate::{
    config::Collector,
    domain::{id::InstanceId, text::chain},
};

/// Spans of one request to the collector.
const BATCH_MAX: usize = 512;
/// How long the first span of a batch waits for more.
const GATHER: Duration = Duration::from_secs(1);
/// How often lost spans are logged.
const LOG_EVERY: Duration = Duration::from_mins(1);

pub(super) struct Sender {
    collector: Collector,
    instance: InstanceId,
    spans: Receiver<Span>,
    counts: Arc<Counts>,
    loss_log: LossLog,
}

impl Sender {
    pub(super) fn new(collector: Collector, instance: InstanceId, spans: Receiver<Span>, counts: Arc<Counts>) -> Self {
        Self { collector, instance, spans, counts, loss_log: LossLog::default() }
    }

    /// Sends until the queue is closed and empty.
    pub(super) async fn run(mut self) {
        let mut batch = Vec::new();
        while self.spans.recv_many(&mut batch, BATCH_MAX).await > 0 {
            self.gather(&mut batch).await;
            self.send(std::mem::take(&mut batch)).await;
        }
    }

    async fn gather(&mut self, batch: &mut Vec<Span>) {
        let deadline = sleep(GATHER);
        tokio::pin!(deadline);
        while batch.len() < BATCH_MAX {
            let room = BATCH_MAX - batch.len();
            tokio::select! {
                () = &mut deadline => return,
                more = self.spans.recv_many(batch, room) => if more == 0 { return },
            }
        }
    }

    async fn send(&mut self, batch: Vec<Span>) {
        let spans = batch.len() as u64;
        let posted = post(&self.collector, self.request(batch).encode_to_vec()).await;
        let (rejected, why) = match &posted {
            Ok(0) => (0, None),
            Ok(rejected) => (spans.min(*rejected), Some("the collector rejected some".to_owned())),
            Err(error) => (spans, Some(chain(error))),
        };
        self.counts.sent.fetch_add(spans - rejected, Ordering::Relaxed);
        let lost = self.counts.lost.fetch_add(rejected, Ordering::Relaxed) + rejected;
        self.log(lost, why.as_deref());
    }

    fn log(&mut self, lost: u64, why: Option<&str>) {
        match self.loss_log.next(lost, why.is_none()) {
            Some(LogLine::Lost(spans)) => {
                let why = why.unwrap_or("too many waited to be sent");
                warn!(spans, why, "spans of traces are lost: check the collector");
            }
            Some(LogLine::Recovered) => info!("traces are sent again"),
            None => {}
        }
    }

    fn request(&self, spans: Vec<Span>) -> ExportTraceServiceRequest {
        let (name, version) = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
        let attributes = vec![
            text("service.name", name),
            text("service.version", version),
            text("service.instance.id", self.instance.to_string()),
        ];
        let resource = Some(Resource { attributes, ..Resource::default() });
        let scope = InstrumentationScope { name: name.to_owned(), version: version.to_owned(), ..Default::default() };
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
        let resource_spans = vec![ResourceSpans { resource, scope_spans, ..ResourceSpans::default() }];
        ExportTraceServiceRequest { resource_spans }
    }
}

/// Decides what is logged about lost spans: a loss at once and then at most once a minute, and the recovery after a
/// minute without a loss.
#[derive(Debug, Default)]
pub(super) struct LossLog {
    /// How many lost spans were logged.
    logged: u64,
    /// When that was.
    at: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum LogLine {
    /// How many were lost since the last line.
    Lost(u64),
    Recovered,
}

impl LossLog {
    /// After each batch: `lost` counts all spans lost since the start, `accepted` is whether this batch was accepted
    /// whole.
    pub(super) fn next(&mut self, lost: u64, accepted: bool) -> Option<LogLine> {
        let a_while_ago = self.at.is_some_and(|at| at.elapsed() >= LOG_EVERY);
        if lost > self.logged && (a_while_ago || self.at.is_none()) {
            let more = lost - std::mem::replace(&mut self.logged, lost);
            self.at = Some(Instant::now());
            return Some(LogLine::Lost(more));
        }
        (accepted && a_while_ago).then(|| {
            self.at = None;
            LogLine::Recovered
        })
    }
}
