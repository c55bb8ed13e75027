//! What is known of the engine's isolation, and how the rest of the server waits for it.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::timeout};

use crate::domain::error::{Code, Failure};

/// How long a run waits for the result.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// The result of the isolation check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Isolation {
    /// Not known yet.
    Pending {
        /// Why the last attempt was inconclusive, once there was one.
        why: Option<String>,
    },
    /// Not known, and not before a runner of another language is installed: one sentence that says which.
    NoProgram(String),
    /// The engine isolates.
    Verified {
        /// What could not be observed or should be better, one sentence each.
        notes: Vec<String>,
        /// Faster candidates of the engine that did not pass.
        rejected: Vec<Rejection>,
    },
    /// The engine does not isolate: one sentence that names what failed and what to do.
    Violated(String),
}

/// A candidate that did not pass the isolation check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    pub candidate: String,
    pub why: String,
}

impl Isolation {
    /// Whether the check has ended.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Verified { .. } | Self::Violated(_))
    }
}

impl Default for Isolation {
    fn default() -> Self {
        Self::Pending { why: None }
    }
}

/// The result as it is now, shared by all who depend on it.
#[derive(Debug, Clone, Default)]
pub struct IsolationState(Arc<watch::Sender<Isolation>>);

impl IsolationState {
    pub fn now(&self) -> Isolation {
        self.0.borrow().clone()
    }

    pub fn set(&self, result: Isolation) {
        self.0.send_replace(result);
    }

    /// Returns when the check has ended.
    pub async fn settled(&self) -> Isolation {
        self.wait_for(Isolation::is_final).await
    }

    /// Returns after the first attempt, conclusive or not.
    pub async fn tried(&self) -> Isolation {
        self.wait_for(|result| *result != Isolation::default()).await
    }

    async fn wait_for(&self, condition: impl FnMut(&Isolation) -> bool) -> Isolation {
        // The sender lives in `self`, so this cannot fail.
        self.0.subscribe().wait_for(condition).await.map_or_else(|_| Isolation::default(), |result| result.clone())
    }

    /// Returns when the engine is known to isolate; otherwise never.
    pub async fn verified(&self) {
        if !matches!(self.settled().await, Isolation::Verified { .. }) {
            std::future::pending::<()>().await;
        }
    }

    /// Returns the reason when the engine is known not to isolate; otherwise never.
    pub async fn violated(&self) -> String {
        match self.settled().await {
            Isolation::Violated(why) => why,
            _ => std::future::pending().await,
        }
    }

    /// Waits until a program may run.
    ///
    /// # Errors
    /// When it may not, or when that is not known within 20 s.
    pub async fn wait(&self) -> Result<(), Failure> {
        match timeout(WAIT_MAX, self.wait_for(|result| !matches!(result, Isolation::Pending { .. }))).await {
            Ok(Isolation::Verified { .. }) => Ok(()),
            Ok(Isolation::Violated(_)) => Err(Failure::new(
                Code::EngineFailed,
                "The container engine does not isolate programs, so none is run: the operator should run \
                 `mcp-sandbox-server doctor`.",
            )),
            Ok(Isolation::NoProgram(why)) => Err(Failure::new(Code::EngineUnavailable, why)),
            Ok(Isolation::Pending { .. }) | Err(_) => Err(Failure::new(
                Code::EngineUnavailable,
                "The server has not yet verified that the container engine isolates programs: try again in a moment.",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn programs_wait_until_isolation_is_verified() {
        let state = IsolationState::default();
        assert_eq!(state.wait().await.expect_err("not known").code, Code::EngineUnavailable);
        state.set(Isolation::NoProgram("install Bash".to_owned()));
        assert_eq!(state.wait().await.expect_err("not verified").message, "install Bash");
        assert!(state.settled().now_or_never().is_none());
        state.set(Isolation::Verified { notes: Vec::new(), rejected: Vec::new() });
        assert!(state.wait().await.is_ok());
        assert!(state.violated().now_or_never().is_none() && state.verified().now_or_never().is_some());
        state.set(Isolation::Violated("the network is open".to_owned()));
        assert_eq!(state.wait().await.expect_err("violated").code, Code::EngineFailed);
        assert!(state.verified().now_or_never().is_none());
        assert_eq!(state.violated().await, "the network is open");
    }
}
