//! The observers: metrics always, the audit log and traces where the settings name them.

use std::sync::Arc;

use super::StartError;
use crate::{
    adapters::{
        audit::Audit,
        metrics::{self, Metrics},
        traces::Traces,
    },
    api::http,
    config::Config,
    domain::{InstanceId, clock::SystemClock},
    ports::observer::{HistoryCounts, Observer, Observers},
    services::{history::History, idempotency::Idempotency, stats::StatsSnapshot},
};

/// The default counts metrics only.
#[derive(Default)]
pub(super) struct Observability {
    metrics: Arc<Metrics>,
    audit: Option<Arc<Audit>>,
    traces: Option<Arc<Traces>>,
}

impl Observability {
    /// Starts the writer of the audit log and the sender of traces.
    pub(super) fn start(config: &Config, instance: InstanceId) -> Result<Self, StartError> {
        let path = &config.audit.file;
        let open = || Audit::open(path.as_ref()).map(Arc::new);
        let audit = (!path.is_empty()).then(open).transpose();
        let audit = audit.map_err(|source| StartError::Audit { path: path.clone(), source })?;
        // Checked when the settings were loaded.
        let collector = config.traces.collector().unwrap_or_default();
        let traces = collector.map(|collector| Arc::new(Traces::start(collector, instance, Arc::new(SystemClock))));
        Ok(Self { metrics: Arc::default(), audit, traces })
    }

    /// Those of here, and two that belong to services.
    pub(super) fn observers(&self, others: [Arc<dyn Observer>; 2]) -> Arc<dyn Observer> {
        let mut all: Vec<Arc<dyn Observer>> = vec![Arc::clone(&self.metrics) as _];
        all.extend(self.audit.clone().map(|audit| audit as _));
        all.extend(self.traces.clone().map(|traces| traces as _));
        all.extend(others);
        Arc::new(Observers(all))
    }

    pub(super) fn exposition(
        &self,
        stats: StatsSnapshot,
        (history, keys): (Arc<History>, Arc<Idempotency>),
    ) -> http::health::Exposition {
        let (metrics, audit, traces) = (Arc::clone(&self.metrics), self.audit.clone(), self.traces.clone());
        let text = move || {
            let audit = audit.as_ref().map(|audit| audit.counts()).unwrap_or_default();
            let traces = traces.as_ref().map(|traces| traces.counts()).unwrap_or_default();
            let history = HistoryCounts { keys_unstored: keys.unstored(), ..history.counts() };
            metrics.text(&stats.now(), audit, traces, history)
        };
        http::health::Exposition { content_type: metrics::CONTENT_TYPE, text: Arc::new(text) }
    }

    /// Sends and writes what is queued.
    pub(super) async fn close(self) {
        if let Some(traces) = self.traces {
            traces.close().await;
        }
        if let Some(audit) = self.audit {
            drop(tokio::task::spawn_blocking(move || audit.close()).await);
        }
    }
}
