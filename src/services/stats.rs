//! The state of the server, collected on request and never on the path of a run: figures of the services, and whether a
//! run can start, which it can when the engine answers and isolates and there is a runner. The engine is probed at most
//! once a second, however often that is asked.

use std::time::Duration;

use tokio::{sync::Mutex, time::Instant};

use super::{isolation_check::Isolation, packages::Packages, runs::Runs, shared_parts::SharedParts};
use crate::{domain::Language, ports::observer::ServerGauges};

const FRESH: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub struct StatsSnapshot {
    pub runs: Runs,
    pub packages: Packages,
}

impl StatsSnapshot {
    /// The gauges at this moment; does not wait for them.
    pub fn now(&self) -> ServerGauges {
        let sessions = self.runs.sessions();
        let SharedParts { sandboxes, standbys, catalog, .. } = self.runs.parts();
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
    engine_answers: Mutex<Option<(Instant, bool)>>,
}

impl Readiness {
    pub fn new(stats: StatsSnapshot) -> Self {
        Self { stats, engine_answers: Mutex::new(None) }
    }

    pub fn standing_by(&self) -> Vec<(Language, &'static str, usize)> {
        self.stats.now().standbys
    }

    pub async fn check(&self) -> Ready {
        let SharedParts { sandboxes, catalog, isolation, .. } = self.stats.runs.parts();
        // Held across the probe, so that concurrent callers share one.
        let mut known = self.engine_answers.lock().await;
        let answers = match *known {
            Some((at, answers)) if at.elapsed() < FRESH => answers,
            _ => {
                let answers = sandboxes.engine.probe().await.is_ok();
                *known = Some((Instant::now(), answers));
                answers
            }
        };
        match (answers, catalog.all().is_empty()) {
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
}

fn unserved(languages: &[(Language, String)]) -> Option<String> {
    let names: Vec<_> = languages.iter().map(|(language, _)| language.as_str()).collect();
    let sentence = || format!("A run can start, but not in {}: run `mcp-sandbox-server doctor`.", names.join(", "));
    (!names.is_empty()).then(sentence)
}
