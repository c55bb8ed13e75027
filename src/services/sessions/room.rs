//! The sandbox of a new session, and the memory for it, for which a session that is not used may have to end.

use std::sync::Arc;

use tracing::error;

use super::{Inner, SessionEnd, kernel, registry::Reserved};
use crate::{
    domain::{
        error::{Code, Failure},
        limits::Limits,
        owner::ConversationKey,
        text::chain,
    },
    ports::{runner::Runner, storage::StorageError},
    services::{janitor::Lease, sandbox::Started, standby::ClaimedStandby},
};

impl Inner {
    /// A sandbox for a session: one that stands by, or a new one.
    pub(super) async fn sandbox(
        &self,
        conversation: &ConversationKey,
        runner: &Runner,
        limits: &Limits,
    ) -> Result<(Started, Arc<Lease>), Failure> {
        let parts = &self.parts;
        let _foreground = parts.standbys.foreground(conversation);
        if let Some(ClaimedStandby { started, lease, .. }) = parts.standbys.take(conversation, runner, limits).await {
            return Ok((started, lease));
        }
        let (store, key) = (Arc::clone(&parts.store), conversation.clone());
        let data = tokio::task::spawn_blocking(move || Ok::<_, StorageError>(store.create(&key)?.data()));
        let data = data.await.map_err(|_| kernel::internal())?.map_err(|error| {
            error!(error = %chain(&error), "the conversation's folder was not prepared");
            error.failure()
        })?;
        let skills = parts.sandboxes.skills.folders(Some(&conversation.owner)).await;
        let (lease, spec) = parts.sandboxes.lease(runner, (data, skills), *limits, self.options.age_max);
        let (sandboxes, leased) = (parts.sandboxes.clone(), Arc::clone(&lease));
        // A start is never aborted: the engine could finish it after the janitor looked for the sandbox.
        let starting = self.tasks.spawn(async move { sandboxes.start(&spec, leased).await });
        let started = starting.await.map_err(|_| kernel::internal())?;
        let started = started.map_err(|error| {
            error!(error = %chain(&error), image = %runner.image.0, "the sandbox of a session was not started");
            error.failure()
        })?;
        Ok((started, lease))
    }

    /// Memory for one more session; those that were used least recently, and run no cell, make room.
    pub(super) fn make_room(&self, bytes: u64) -> Result<Reserved<'_>, Failure> {
        loop {
            if let Some(reserved) = self.registry.reserve(bytes, self.options.memory_bytes_max) {
                return Ok(reserved);
            }
            let Some(unused) = self.registry.least_recently_used() else {
                let why = "All sessions are busy and use the memory that is set aside for sessions: try again later, \
                           or close one.";
                return Err(Failure::new(Code::SessionsFull, why));
            };
            self.end(&unused, SessionEnd::Memory);
        }
    }
}
