//! Who is told what happens, and the text that is made of it.

use std::sync::Arc;

use super::StartError;
use crate::{
    adapters::{
        audit::Audit,
        metrics::{self, Metrics},
    },
    ground::config::Config,
    ports::observer::{Observer, Observers},
    services::vitals::Vitals,
    surfaces::http,
};

/// Who is told what happens.
pub(super) struct Watchers {
    metrics: Arc<Metrics>,
    pub(super) audit: Option<Arc<Audit>>,
}

impl Watchers {
    pub(super) fn new(config: &Config) -> Result<Self, StartError> {
        let path = &config.audit.file;
        let open = || Audit::open(path.as_ref()).map(Arc::new);
        let audit = (!path.is_empty()).then(open).transpose();
        let audit = audit.map_err(|source| StartError::Audit { path: path.clone(), source })?;
        Ok(Self { metrics: Arc::default(), audit })
    }

    pub(super) fn observers(&self) -> Observers {
        let mut all: Vec<Arc<dyn Observer>> = vec![Arc::clone(&self.metrics) as _];
        all.extend(self.audit.clone().map(|audit| audit as _));
        Observers(all)
    }

    pub(super) fn exposition(&self, vitals: Vitals) -> http::metrics::Exposition {
        let (metrics, audit) = (Arc::clone(&self.metrics), self.audit.clone());
        let text = move || metrics.text(&vitals.now(), audit.as_ref().map(|audit| audit.figures()).unwrap_or_default());
        http::metrics::Exposition { content_type: metrics::CONTENT_TYPE, text: Arc::new(text) }
    }
}
