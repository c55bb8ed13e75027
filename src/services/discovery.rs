//! Keeps the catalog of runners up to date: lists the runners at the start and whenever the engine reports a change.
//!
//! ```text
//! Discovery::start ── follow: one task; ended by `stop`
//! ```

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::StreamExt;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::janitor::chain;
use crate::ports::{
    engine::{Engine, EngineError},
    runner::{Catalog, Runner},
};

pub struct Discovery {
    catalog: Arc<Catalog>,
    engine: Arc<dyn Engine>,
    /// Images that were logged, so that each is logged once.
    refused: Mutex<HashSet<String>>,
}

impl Discovery {
    pub fn new(engine: Arc<dyn Engine>, catalog: Arc<Catalog>) -> Arc<Self> {
        Arc::new(Self { catalog, engine, refused: Mutex::default() })
    }

    /// Lists the runners now.
    ///
    /// # Errors
    /// When the engine does not list its images; the catalog stays as it was.
    pub async fn refresh(&self) -> Result<(), EngineError> {
        let images = self.engine.runners().await?;
        let mut runners = Vec::new();
        for image in &images {
            match Runner::from_image(image) {
                Ok(runner) => runners.push(runner),
                Err(why) => {
                    let name = image.reference.clone().unwrap_or_else(|| image.id.0.clone());
                    if self.refused.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone()) {
                        warn!(image = %name, %why, "an image with the runner label is not a runner");
                    }
                }
            }
        }
        self.catalog.replace(runners);
        let all = self.catalog.all();
        let languages: Vec<_> = all.iter().map(|runner| runner.language.as_str()).collect();
        info!(languages = languages.join(","), "runners were listed");
        Ok(())
    }

    /// Follows the engine until `stop`.
    pub fn follow(self: Arc<Self>, stop: CancellationToken) -> JoinHandle<()> {
        tokio::spawn(async move {
            let mut changes = self.engine.changes();
            loop {
                tokio::select! {
                    change = changes.next() => if change.is_none() { return },
                    () = stop.cancelled() => return,
                }
                if let Err(error) = self.refresh().await {
                    warn!(error = %chain(&error), "the runners were not listed; the known ones stay");
                }
            }
        })
    }
}
