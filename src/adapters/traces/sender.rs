//! The task that takes spans from the queue and posts them in batches. What a collector does not take is lost: it is
//! counted, and told at most once a minute.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use prost::Message as _;
use tokio::{
    sync::mpsc::Receiver,
    time::{Instant, sleep},
};
use tracing::{info, warn};

use super::{
    Counts,
    otlp::{Request, Resource, ResourceSpans, Scope, ScopeSpans, Span},
    post::post,
    spans::text,
};
use crate::{config::Collector, domain::id::InstanceId};

/// Spans of one request to the collector.
const BATCH_MAX: usize = 512;
/// How long the first span of a batch waits for company.
const GATHER: Duration = Duration::from_secs(1);
/// How often it is told that spans are lost.
const TELL_EVERY: Duration = Duration::from_mins(1);

pub(super) struct Sender {
    collector: Collector,
    instance: InstanceId,
    spans: Receiver<Span>,
    counts: Arc<Counts>,
    news: News,
}

impl Sender {
    pub(super) fn new(collector: Collector, instance: InstanceId, spans: Receiver<Span>, counts: Arc<Counts>) -> Self {
        Self { collector, instance, spans, counts, news: News::default() }
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
        self.tell(lost, why.as_deref());
    }

    fn tell(&mut self, lost: u64, why: Option<&str>) {
        match self.news.of(lost, why.is_none()) {
            Some(Word::Lost(spans)) => {
                let why = why.unwrap_or("too many waited to be sent");
                warn!(spans, why, "spans of traces are lost: see to the collector");
            }
            Some(Word::Mended) => info!("traces are sent again"),
            None => {}
        }
    }

    fn request(&self, spans: Vec<Span>) -> Request {
        let (name, version) = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
        let resource = Resource {
            attributes: vec![
                text("service.name", name),
                text("service.version", version),
                text("service.instance.id", self.instance.to_string()),
            ],
        };
        let scope = Scope { name: name.to_owned(), version: version.to_owned() };
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
        Request { resource_spans: vec![ResourceSpans { resource: Some(resource), scope_spans }] }
    }
}

/// What is worth a line in the log: that spans are lost, at once when it begins and then at most once a minute; and that
/// none were for a minute.
#[derive(Debug, Default)]
pub(super) struct News {
    /// How many spans were said to be lost.
    told: u64,
    /// When that was last said.
    at: Option<Instant>,
}

/// A line in the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// So many more.
    Lost(u64),
    Mended,
}

impl News {
    /// After a batch: how many spans are lost by now, and whether this one was taken whole.
    pub(super) fn of(&mut self, lost: u64, taken: bool) -> Option<Word> {
        let a_while_ago = self.at.is_some_and(|at| at.elapsed() >= TELL_EVERY);
        if lost > self.told && (a_while_ago || self.at.is_none()) {
            let more = lost - std::mem::replace(&mut self.told, lost);
            self.at = Some(Instant::now());
            return Some(Word::Lost(more));
        }
        (taken && a_while_ago).then(|| {
            self.at = None;
            Word::Mended
        })
    }
}

/// An error with its causes, for a log line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
