//! Starts what runs in the background, and ends it.
//!
//! ```text
//! Background::start ── janitor (sweep, rounds) · standbys (refill) · sessions (rounds) · discovery (follow)
//!                   ├─ retention (rounds) · packages (rounds)
//!                   ├─ database (migrations), then tokens, policies, peers, sessions and history (follow) · sign-in
//!                   │  (keep) · what ends with a token
//!                   └─ metrics: an accept loop, where they have an address of their own
//! Background::test_isolation ── one task, until the isolation is settled
//! ```
//!
//! [`Background::stop`] ends all of them; see there for the order.

use std::{sync::Arc, time::Duration};

use tokio::{net::TcpListener, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{StartError, listen, options, parts::Parts, peers};
use crate::{
    adapters::database::Database,
    config::Config,
    ports::storage::Storage,
    services::{
        history::History,
        idempotency::Idempotency,
        network::Policies,
        runs::Runs,
        sessions::Sessions,
        tokens::{TokenEnds, Tokens},
    },
};

/// How long the janitor may take to destroy the sandboxes that are left at the end.
const DRAIN_MAX: Duration = Duration::from_secs(20);

/// How long the start waits for the database.
const DATABASE_MAX: Duration = Duration::from_secs(2);

pub(super) struct Background {
    tasks: Vec<JoinHandle<()>>,
}

impl Background {
    /// Deletes what an earlier process left, and starts everything but the isolation test.
    ///
    /// # Errors
    /// When the address of the metrics is taken, or the engine does not list its sandboxes.
    pub(super) async fn start(config: &Config, parts: &Parts) -> Result<Self, StartError> {
        let metrics = bind_metrics(config).await?;
        parts.shared.sandboxes.janitor.start();
        parts.shared.sandboxes.janitor.reconcile().await?;
        recover(&parts.shared.store).await;
        parts.shared.standbys.start();
        parts.sessions.start();
        let stop = || parts.stop.clone();
        let mut tasks = vec![Arc::clone(&parts.discovery).follow(stop()), Arc::clone(&parts.retention).start(stop())];
        tasks.push(parts.packages.start(stop()));
        if let Some(database) = parts.database.clone() {
            // So that the first request finds them, where the database answers.
            let first = async {
                if database.prepare().await.is_ok() {
                    parts.shared.tokens.load().await;
                    drop(parts.policies.load().await);
                    drop(parts.tools.directory().load().await);
                    parts.sessions.recover().await;
                }
            };
            let _ = timeout(DATABASE_MAX, first).await;
            tasks.push(tokio::spawn(keep(
                database,
                Arc::clone(&parts.shared.tokens),
                (Arc::clone(&parts.history), Arc::clone(&parts.keys)),
                (Arc::clone(&parts.policies), (parts.runs.clone(), parts.sessions.clone())),
                stop(),
            )));
            tasks.push(parts.tools.start(stop()));
            tasks.extend(parts.sign_in.clone().map(|sign_in| tokio::spawn(sign_in.keep(stop()))));
            tasks.push(tokio::spawn(end_what_tokens_opened(
                parts.shared.tokens.ends(),
                (parts.runs.clone(), parts.sessions.clone()),
                stop(),
            )));
        }
        if let Some(listener) = metrics {
            let surface = parts.surface(&parts.metrics_router);
            tokio::spawn(listen::serve(listener, surface, options::listen(config), stop(), stop()));
        }
        Ok(Self { tasks })
    }

    /// Starts to test whether the engine isolates; `parts.shared.isolation` has the result. A second call does nothing.
    pub(super) fn test_isolation(&mut self, parts: &mut Parts) {
        self.tasks.extend(parts.check.take().map(|check| check.start(parts.stop.clone())));
    }

    /// Ends every run and every task, so that no sandbox is left: runs first, then sessions and standbys, then the
    /// janitor when its list is empty, then the rest.
    pub(super) async fn stop(self, parts: Parts, grace: Duration) {
        parts.runs.stop(grace).await;
        parts.kernels.stop().await;
        parts.packages.stop().await;
        parts.checker.stop().await;
        parts.tools.directory().stop().await;
        parts.stop.cancel();
        parts.sessions.stop().await;
        parts.shared.standbys.stop().await;
        parts.shared.sandboxes.janitor.drain(DRAIN_MAX).await;
        for task in self.tasks {
            drop(task.await);
        }
        parts.shared.files.close().await;
    }
}

/// Removes what an earlier process left; what takes long is deleted in the background.
async fn recover(store: &Arc<dyn Storage>) {
    let store = Arc::clone(store);
    if let Ok(Err(error)) = tokio::task::spawn_blocking(move || store.recover()).await {
        warn!(%error, "folders that an earlier process left were not deleted");
    }
}

/// Prepares the database, keeps the tokens true to it, and stores the history in it.
async fn keep(
    database: Database,
    tokens: Arc<Tokens>,
    (history, keys): (Arc<History>, Arc<Idempotency>),
    (policies, (runs, sessions)): (Arc<Policies>, (Runs, Sessions)),
    stop: CancellationToken,
) {
    database.prepare_at_last(stop.clone()).await;
    let followed = (tokens.follow(stop.clone()), history.follow(stop.clone()), policies.follow(stop.clone()));
    let beside = runs.peers().clone();
    let recorded = sessions.clone();
    let recorded = recorded.follow(stop.clone());
    let beside = beside.follow(peers::LocalOccupancy { runs, sessions }, stop.clone());
    tokio::join!(followed.0, followed.1, followed.2, beside, recorded, keys.load(stop));
    database.close().await;
}

/// Ends the runs and sessions of tokens that end.
async fn end_what_tokens_opened(mut ends: TokenEnds, (runs, sessions): (Runs, Sessions), stop: CancellationToken) {
    while let Some(ended) = stop.run_until_cancelled(ends.next()).await.flatten() {
        for token in ended {
            runs.cancel_all_of(token);
            sessions.close_all_of(token);
        }
    }
}

async fn bind_metrics(config: &Config) -> Result<Option<TcpListener>, StartError> {
    let Some(addr) = config.metrics.addr() else { return Ok(None) };
    let bound = listen::bind(&addr).await;
    bound.map(Some).map_err(|source| StartError::Listen { name: "SANDBOX_METRICS__HTTP_ADDR", addr, source })
}
