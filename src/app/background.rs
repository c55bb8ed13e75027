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

use futures_util::{Stream, StreamExt as _};
use tokio::time::timeout;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::warn;

use super::{StartError, listen, listen_on, parts::Parts};
use crate::{
    adapters::database::Database,
    api::http::ApiParts,
    config::Config,
    domain::{InstanceId, TokenId},
    ports::storage::Storage,
};

/// How long the janitor may take to destroy the sandboxes that are left at the end. The grace period of the chart's
/// server has room for it.
const DRAIN_MAX: Duration = Duration::from_secs(20);

/// How long the start waits for the database.
const DATABASE_MAX: Duration = Duration::from_secs(2);

pub(super) struct Background {
    tasks: TaskTracker,
}

impl Background {
    /// Deletes what an earlier process left, and starts everything but the isolation test.
    ///
    /// # Errors
    /// When the address of the metrics is taken, or the engine does not list its sandboxes.
    pub(super) async fn start(config: &Config, parts: &Parts) -> Result<Self, StartError> {
        let metrics = match config.metrics.addr() {
            Some(addr) => Some(listen_on("SANDBOX_METRICS__HTTP_ADDR", addr).await?),
            None => None,
        };
        parts.shared.sandboxes.janitor.start();
        parts.shared.sandboxes.janitor.reconcile().await?;
        recover(&parts.shared.store).await;
        parts.shared.standbys.start();
        parts.api.sessions.start();
        let (stop, tasks) = (|| parts.stop.clone(), TaskTracker::new());
        tasks.spawn(Arc::clone(&parts.discovery).follow(stop()));
        tasks.spawn(Arc::clone(&parts.retention).run(stop()));
        tasks.spawn(parts.api.packages.clone().run(stop()));
        if let Some(database) = parts.database.clone() {
            // So that the first request finds them, where the database answers.
            let first = async {
                if database.prepare().await.is_ok() {
                    parts.shared.tokens.load().await;
                    drop(parts.shared.network.policies().load().await);
                    drop(parts.api.tools.directory().load().await);
                    parts.api.sessions.recover().await;
                }
            };
            let _ = timeout(DATABASE_MAX, first).await;
            tasks.spawn(keep(database, parts.api.clone(), parts.shared.sandboxes.instance, stop()));
            tasks.spawn(parts.api.tools.clone().follow(stop()));
            if let Some(sign_in) = parts.sign_in.clone() {
                tasks.spawn(sign_in.remove_expired(stop()));
            }
            tasks.spawn(end_what_tokens_opened(parts.shared.tokens.ends(), parts.api.clone(), stop()));
        }
        if let Some(listener) = metrics {
            let surface = parts.surface(&parts.metrics_router);
            tokio::spawn(listen::serve(listener, surface, config.server.clone(), stop(), stop()));
        }
        Ok(Self { tasks })
    }

    /// Starts to test whether the engine isolates; `parts.shared.isolation` has the result. A second call does nothing.
    pub(super) fn test_isolation(&self, parts: &mut Parts) {
        if let Some(check) = parts.check.take() {
            self.tasks.spawn(check.run(parts.stop.clone()));
        }
    }

    /// Ends every run and every task, so that no sandbox is left: runs first, then sessions and standbys, then the
    /// janitor when its list is empty, then the rest.
    pub(super) async fn stop(self, parts: Parts, grace: Duration) {
        parts.api.runs.stop(grace).await;
        parts.api.kernels.stop().await;
        parts.api.packages.stop().await;
        parts.api.checker.stop().await;
        parts.api.tools.stop().await;
        parts.stop.cancel();
        parts.api.sessions.stop().await;
        parts.shared.standbys.stop().await;
        parts.shared.sandboxes.janitor.drain(DRAIN_MAX).await;
        self.tasks.close();
        self.tasks.wait().await;
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

/// Prepares the database, keeps the tokens true to it, stores the history in it, and exchanges changes of files by it.
async fn keep(database: Database, api: ApiParts, me: InstanceId, stop: CancellationToken) {
    let ApiParts { tokens, history, keys, runs, sessions, containers, network, files, .. } = api;
    let (sharing, peers) = (stop.clone(), runs.peers());
    let shared = async {
        if !peers.is_alone() {
            files.share_changes(me, &database, sharing).await;
        }
    };
    let kept = async {
        database.prepare_with_retries(stop.clone()).await;
        tokio::join!(
            tokens.follow(stop.clone()),
            history.follow(stop.clone()),
            network.policies().follow(stop.clone()),
            peers.follow(containers, stop.clone()),
            sessions.follow(stop.clone()),
            keys.load(stop.clone()),
        );
    };
    tokio::join!(shared, kept);
    database.close().await;
}

/// Ends the runs and sessions of tokens that end.
async fn end_what_tokens_opened(
    mut ends: impl Stream<Item = Vec<TokenId>> + Unpin,
    api: ApiParts,
    stop: CancellationToken,
) {
    while let Some(ended) = stop.run_until_cancelled(ends.next()).await.flatten() {
        for token in ended {
            api.runs.cancel_all_of(token);
            api.sessions.close_all_of(token);
        }
    }
}
