//! The state of the server, collected on request and never on the path of a run: figures of the services, and whether a
//! run can start, which it can when the engine answers and isolates and there is a runner. The engine is probed at most
//! once a second, however often that is asked. While it is slow to answer, the last probe counts.
//!
//! ```text
//! check ── one task: a probe, which ends at the time limit of the engine's calls
//! ```

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, timeout},
};

use super::{isolation_check::Isolation, packages::Packages, runs::Runs, shared_parts::SharedParts};
use crate::{domain::Language, ports::observer::ServerGauges};

const FRESH: Duration = Duration::from_secs(1);
/// How long a request waits for a probe, and how many do. The others are answered at once, so that those who ask often
/// while the engine hangs hold few connections.
const WAIT_MAX: Duration = Duration::from_millis(900);
const WAITING_MAX: usize = 4;

#[derive(Clone)]
pub struct StatsSnapshot {
    pub runs: Runs,
    pub packages: Packages,
}

impl StatsSnapshot {
    /// The gauges at this moment; does not wait for them.
    pub fn now(&self) -> ServerGauges {
        let sessions = self.runs.sessions();
        let SharedParts { sandboxes, standbys, catalog, files, .. } = self.runs.parts();
        ServerGauges {
            load: self.runs.load(),
            sessions: sessions.load(),
            under_way: self.runs.under_way(),
            leased: sandboxes.janitor.leased(),
            unwanted: sandboxes.janitor.unwanted(),
            standbys: standbys.by_phase().into_iter().chain(sessions.waiting()).collect(),
            standbys_taken: standbys.taken(),
            languages: catalog.all().len(),
            packages: self.packages.counts(),
            file_changes_unannounced: files.announcements_lost(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ready {
    Yes,
    /// Some languages are not served: one sentence that names them.
    Except(String),
    NoEngine,
    /// No image carries the runner label.
    NoRunner,
    /// The isolation check has not ended; why the last attempt was inconclusive, once there was one.
    NotTested(Option<String>),
    /// The isolation check has no program for the installed languages: one sentence that says what to install.
    NoIsolationProgram(String),
    NoIsolation,
}

pub struct Readiness {
    stats: StatsSnapshot,
    /// When the last probe ended, and whether the engine answered.
    probed: watch::Sender<Option<(Instant, bool)>>,
    /// Held by the probe that is under way.
    probing: Arc<Semaphore>,
    waiting: Semaphore,
}

impl Readiness {
    pub fn new(stats: StatsSnapshot) -> Self {
        let (probing, waiting) = (Arc::new(Semaphore::new(1)), Semaphore::new(WAITING_MAX));
        Self { stats, probed: watch::Sender::new(None), probing, waiting }
    }

    pub fn standing_by(&self) -> Vec<(Language, &'static str, usize)> {
        self.stats.now().standbys
    }

    pub async fn check(&self) -> Ready {
        let SharedParts { catalog, isolation, .. } = self.stats.runs.parts();
        match (self.engine_answers().await, catalog.all().is_empty()) {
            (false, _) => Ready::NoEngine,
            (true, true) => Ready::NoRunner,
            (true, false) => match isolation.now() {
                Isolation::Verified { .. } => unserved(&isolation.unserved()).map_or(Ready::Yes, Ready::Except),
                Isolation::Pending { why } => Ready::NotTested(why),
                Isolation::NoProgram(why) => Ready::NoIsolationProgram(why),
                Isolation::Violated(_) => Ready::NoIsolation,
            },
        }
    }

    /// By the last probe. Until the first has ended, the engine does not answer.
    async fn engine_answers(&self) -> bool {
        let mut probed = self.probed.subscribe();
        if !self.is_fresh() {
            self.probe();
            if let Ok(_waits) = self.waiting.try_acquire() {
                // Else the one before counts.
                drop(timeout(WAIT_MAX, probed.changed()).await);
            }
        }
        let last = *probed.borrow();
        last.is_some_and(|(_, answers)| answers)
    }

    fn is_fresh(&self) -> bool {
        self.probed.borrow().is_some_and(|(at, _)| at.elapsed() < FRESH)
    }

    /// Begins a probe, unless one is under way or has just ended.
    fn probe(&self) {
        let Ok(one) = Arc::clone(&self.probing).try_acquire_owned() else { return };
        if self.is_fresh() {
            return;
        }
        let (engine, probed) = (Arc::clone(&self.stats.runs.parts().sandboxes.engine), self.probed.clone());
        tokio::spawn(async move {
            let answers = engine.probe().await.is_ok();
            probed.send_replace(Some((Instant::now(), answers)));
            drop(one);
        });
    }
}

fn unserved(languages: &[(Language, String)]) -> Option<String> {
    let names: Vec<_> = languages.iter().map(|(language, _)| language.as_str()).collect();
    let sentence = || format!("A run can start, but not in {}: run `mcp-sandbox-server doctor`.", names.join(", "));
    (!names.is_empty()).then(sentence)
}
