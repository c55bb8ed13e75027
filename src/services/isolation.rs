//! Whether this engine was seen to isolate programs. Nothing is run for anybody before it was.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::timeout};

use crate::domain::error::{Code, Failure};

/// How long a run waits for the answer.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// What is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tested {
    /// Nothing yet.
    Pending {
        /// Why the last attempt told nothing, once there was one.
        why: Option<String>,
    },
    /// It isolates. Each note says what could not be seen.
    Holds {
        /// A sentence each.
        notes: Vec<String>,
        /// Whether sandboxes are started by another runtime than the engine's usual one.
        trial: Trial,
    },
    /// It does not: one sentence that names what failed and what to do.
    Broken(String),
}

/// What came of a runtime that starts sandboxes sooner than the usual one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Trial {
    /// The engine offers none, or a setting has chosen.
    #[default]
    None,
    /// The engine was seen to isolate under it, and it is used.
    Passed {
        /// Its name.
        runtime: String,
    },
    /// It is not used.
    Failed {
        /// Its name.
        runtime: String,
        /// What was seen, or what the engine said.
        why: String,
    },
}

impl Default for Tested {
    fn default() -> Self {
        Self::Pending { why: None }
    }
}

/// The answer, for whoever needs it. A clone is the same.
#[derive(Debug, Clone, Default)]
pub struct IsolationState(Arc<watch::Sender<Tested>>);

impl IsolationState {
    /// What is known now.
    pub fn now(&self) -> Tested {
        self.0.borrow().clone()
    }

    /// Says what is known from now on.
    pub fn settle(&self, tested: Tested) {
        self.0.send_replace(tested);
    }

    /// Returns once something is known.
    pub async fn settled(&self) -> Tested {
        self.once(|tested| !matches!(tested, Tested::Pending { .. })).await
    }

    /// Returns once it was tried, whether or not anything is known then.
    pub async fn tried(&self) -> Tested {
        self.once(|tested| *tested != Tested::default()).await
    }

    async fn once(&self, holds: impl FnMut(&Tested) -> bool) -> Tested {
        // The sender lives in `self`, so this cannot fail.
        self.0.subscribe().wait_for(holds).await.map_or_else(|_| Tested::default(), |known| known.clone())
    }

    /// Returns once it is known that the engine isolates; never, where it does not.
    pub async fn holds(&self) {
        if !matches!(self.settled().await, Tested::Holds { .. }) {
            std::future::pending::<()>().await;
        }
    }

    /// Returns why, once it is known that the engine does not isolate; otherwise never.
    pub async fn broken(&self) -> String {
        match self.settled().await {
            Tested::Broken(why) => why,
            Tested::Pending { .. } | Tested::Holds { .. } => std::future::pending().await,
        }
    }

    /// Waits until a program may be run.
    ///
    /// # Errors
    /// When it may not, or when that is not known for too long.
    pub async fn wait(&self) -> Result<(), Failure> {
        match timeout(WAIT_MAX, self.settled()).await {
            Ok(Tested::Holds { .. }) => Ok(()),
            Ok(Tested::Broken(_)) => Err(Failure::new(
                Code::EngineFailed,
                "The container engine does not isolate programs, so none is run: the operator should run \
                 `mcp-sandbox-server doctor`.",
            )),
            Ok(Tested::Pending { .. }) | Err(_) => Err(Failure::new(
                Code::EngineUnavailable,
                "The server has not seen yet that the container engine isolates programs: try again in a moment.",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nothing_runs_before_it_is_known() {
        let isolation = IsolationState::default();
        assert_eq!(isolation.wait().await.expect_err("nothing is known").code, Code::EngineUnavailable);
        isolation.settle(Tested::Holds { notes: Vec::new(), trial: Trial::None });
        assert!(isolation.wait().await.is_ok());
        assert!(isolation.broken().now_or_never().is_none() && isolation.holds().now_or_never().is_some());
        isolation.settle(Tested::Broken("the network is open".to_owned()));
        assert_eq!(isolation.wait().await.expect_err("it is broken").code, Code::EngineFailed);
        assert!(isolation.holds().now_or_never().is_none());
        assert_eq!(isolation.broken().await, "the network is open");
    }
}
