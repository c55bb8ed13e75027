//! Keeps the catalog of runners up to date: lists the runners at the start and whenever the engine reports a change.
//!
//! ```text
//! Discovery::follow ── one task; ended by `stop`
//! ```

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use futures_util::StreamExt;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    domain::{Language, text::chain},
    ports::{
        engine::{Engine, EngineError, ImageId},
        observer::Observer,
        runner::{Catalog, Runner},
    },
};

pub struct Discovery {
    catalog: Arc<Catalog>,
    engine: Arc<dyn Engine>,
    observer: Arc<dyn Observer>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Images that were logged, so that each is logged once.
    refused: HashSet<String>,
    /// The image that each language had last.
    images: HashMap<Language, ImageId>,
}

impl Discovery {
    pub fn new(engine: Arc<dyn Engine>, catalog: Arc<Catalog>, observer: Arc<dyn Observer>) -> Arc<Self> {
        Arc::new(Self { catalog, engine, observer, seen: Mutex::default() })
    }

    /// Lists the runners now.
    ///
    /// # Errors
    /// When the engine does not list its images; the catalog stays as it was.
    pub async fn refresh(&self) -> Result<(), EngineError> {
        let images = self.engine.runners().await?;
        let mut seen = self.seen.lock();
        let mut runners = Vec::new();
        for image in &images {
            match Runner::from_image(image) {
                Ok(runner) => runners.push(runner),
                Err(why) => {
                    let name = image.reference.clone().unwrap_or_else(|| image.id.0.clone());
                    if seen.refused.insert(name.clone()) {
                        warn!(image = %name, %why, "an image with the runner label is not a runner");
                    }
                }
            }
        }
        self.catalog.replace(runners);
        let all = self.catalog.all();
        for Runner { language, image, reference, .. } in all.iter() {
            let before = seen.images.insert(language.clone(), image.clone()).filter(|before| before != image);
            if let Some(before) = before {
                let name = reference.as_deref().unwrap_or_default();
                warn!(%language, before = before.0, image = image.0, name, "a language has another image now");
                self.observer.runner_changed(language);
            }
        }
        let languages: Vec<_> = all.iter().map(|runner| runner.language.as_str()).collect();
        info!(languages = languages.join(","), "runners were listed");
        Ok(())
    }

    /// Follows the engine until `stop`.
    pub async fn follow(self: Arc<Self>, stop: CancellationToken) {
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
    }
}
