//! Whether a run can start: the engine answers and there is something to run. It asks at most once a second, however
//! often it is asked itself.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Mutex, time::Instant};

use super::{
    isolation::{IsolationState, Tested},
    stats::StatsSnapshot,
};
use crate::{
    domain::id::Language,
    ports::{engine::Engine, runner::Catalog},
};

const FRESH: Duration = Duration::from_secs(1);

/// What is known about starting a run now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ready {
    /// A run can start.
    Yes,
    /// The engine does not answer.
    NoEngine,
    /// No image carries the runner label.
    NoRunner,
    /// The engine was not seen to isolate yet; why, where something is known.
    NotTested(Option<String>),
    /// The engine does not isolate.
    NoIsolation,
}

/// The service.
pub struct Readiness {
    engine: Arc<dyn Engine>,
    catalog: Arc<Catalog>,
    isolation: IsolationState,
    stats: StatsSnapshot,
    engine_answers: Mutex<Option<(Instant, bool)>>,
}

impl Readiness {
    /// Nothing was asked yet.
    pub fn new(
        engine: Arc<dyn Engine>,
        catalog: Arc<Catalog>,
        isolation: IsolationState,
        stats: StatsSnapshot,
    ) -> Self {
        Self { engine, catalog, isolation, stats, engine_answers: Mutex::new(None) }
    }

    /// What stands by now: language, how far, how many.
    pub fn standing_by(&self) -> Vec<(Language, &'static str, usize)> {
        self.stats.now().standbys
    }

    /// Can a run start?
    pub async fn check(&self) -> Ready {
        // Held while the engine is asked: a crowd of askers asks it once.
        let mut known = self.engine_answers.lock().await;
        let answers = match *known {
            Some((at, answers)) if at.elapsed() < FRESH => answers,
            _ => {
                let answers = self.engine.probe().await.is_ok();
                *known = Some((Instant::now(), answers));
                answers
            }
        };
        match (answers, self.catalog.all().is_empty()) {
            (false, _) => Ready::NoEngine,
            (true, true) => Ready::NoRunner,
            (true, false) => match self.isolation.now() {
                Tested::Holds { .. } => Ready::Yes,
                Tested::Pending { why } => Ready::NotTested(why),
                Tested::Broken(_) => Ready::NoIsolation,
            },
        }
    }
}
