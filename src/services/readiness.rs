//! Whether a run can start: the engine answers, it isolates, and there is a runner. It probes the engine at most once a
//! second, however often it is called.

use std::time::Duration;

use tokio::{sync::Mutex, time::Instant};

use super::{isolation_check::Isolation, shared_parts::SharedParts, stats::StatsSnapshot};
use crate::domain::id::Language;

const FRESH: Duration = Duration::from_secs(1);

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

    fn parts(&self) -> &SharedParts {
        self.stats.runs.parts()
    }

    pub fn standing_by(&self) -> Vec<(Language, &'static str, usize)> {
        self.stats.now().standbys
    }

    pub async fn check(&self) -> Ready {
        // Held across the probe, so that concurrent callers share one.
        let mut known = self.engine_answers.lock().await;
        let answers = match *known {
            Some((at, answers)) if at.elapsed() < FRESH => answers,
            _ => {
                let answers = self.parts().sandboxes.engine.probe().await.is_ok();
                *known = Some((Instant::now(), answers));
                answers
            }
        };
        match (answers, self.parts().catalog.all().is_empty()) {
            (false, _) => Ready::NoEngine,
            (true, true) => Ready::NoRunner,
            (true, false) => match self.parts().isolation.now() {
                Isolation::Verified { .. } => self.unserved().map_or(Ready::Yes, Ready::Except),
                Isolation::Pending { why } => Ready::NotTested(why),
                Isolation::NoProgram(why) => Ready::NoIsolationProgram(why),
                Isolation::Violated(_) => Ready::NoIsolation,
            },
        }
    }

    fn unserved(&self) -> Option<String> {
        let names: Vec<_> =
            self.parts().isolation.unserved().iter().map(|(language, _)| language.to_string()).collect();
        let sentence = || format!("A run can start, but not in {}: run `mcp-sandbox-server doctor`.", names.join(", "));
        (!names.is_empty()).then(sentence)
    }
}
