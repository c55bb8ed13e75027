//! The kernel of a new session, its sandbox, and its memory; unused sessions may end to free it.

use std::{collections::HashMap, sync::Arc};

use tracing::{error, warn};

use super::{
    Inner, Kernel, SessionEnd, Sessions, Setup, kernel,
    registry::{Reserved, SessionCapacity},
};
use crate::{
    domain::{
        error::{Code, Failure},
        id::Language,
        limits::Limits,
        owner::{ConversationKey, Principal},
        text::chain,
    },
    ports::{observer::SessionsLoad, runner::Runner, storage::StorageError},
    services::{janitor::Lease, network::Access, sandbox::Started, standby::ClaimedStandby},
};

impl Sessions {
    /// Kernels that wait for a session, in the form of [`Standbys::by_phase`].
    pub fn waiting(&self) -> Vec<(Language, &'static str, usize)> {
        self.0.prestarted.waiting()
    }

    /// The sessions that are open.
    pub fn load(&self) -> SessionsLoad {
        let mut of_owners = HashMap::<_, u64>::new();
        let open = self.0.registry.all();
        for session in &open {
            *of_owners.entry(&session.conversation.owner).or_default() += session.memory_bytes_max;
        }
        SessionsLoad {
            open: open.len(),
            memory_bytes: of_owners.values().sum(),
            owner_memory_bytes_max: of_owners.values().copied().max().unwrap_or(0),
        }
    }
}

impl Inner {
    /// A kernel for a session that is ready: one that waits, or a new one.
    pub(super) async fn kernel(
        self: &Arc<Self>,
        conversation: &ConversationKey,
        runner: &Runner,
        limits: &Limits,
        setup: &Setup,
        access: Option<Access>,
    ) -> Result<(Kernel, Arc<Lease>), Failure> {
        if access.is_none()
            && let Some(waiting) = self.take_ahead(conversation, runner, setup).await
        {
            self.opened(runner);
            return Ok(waiting);
        }
        let (started, lease) = self.sandbox(conversation, runner, &self.lasting(*limits)).await?;
        let name = runner.kernel.as_deref().unwrap_or_default();
        let channels = access.map(|access| self.parts.network.open(access, conversation, &runner.language));
        let kernel = Kernel::begin(started, name, &setup.env, self.options.age_max, channels, &self.tasks);
        let ready = kernel.ready().await.inspect_err(|_| {
            warn!(image = %runner.image.0, language = %runner.language, "the kernel of a session did not start");
        })?;
        if ready.is_cold {
            self.opened(runner);
        }
        Ok((kernel, lease))
    }

    /// The limits of a sandbox that lasts as long as a session.
    pub(super) fn lasting(&self, limits: Limits) -> Limits {
        Limits { wall_ms: u64::try_from(self.options.age_max.as_millis()).unwrap_or(u64::MAX), ..limits }
    }

    /// A sandbox for a session: one that stands by, or a new one.
    pub(super) async fn sandbox(
        &self,
        conversation: &ConversationKey,
        runner: &Runner,
        limits: &Limits,
    ) -> Result<(Started, Arc<Lease>), Failure> {
        let parts = &self.parts;
        let _foreground = parts.standbys.foreground(conversation);
        if let Some(ClaimedStandby { started, lease, .. }) =
            parts.standbys.take(conversation, runner, limits, false).await
        {
            return Ok((started, lease));
        }
        let (store, key) = (Arc::clone(&parts.store), conversation.clone());
        let data = tokio::task::spawn_blocking(move || Ok::<_, StorageError>(store.create(&key)?.data()));
        let data = data.await.map_err(|_| kernel::internal())?.map_err(|error| {
            error!(error = %chain(&error), "the conversation's folder was not prepared");
            error.failure()
        })?;
        let mounts = parts.sandboxes.mounts_of(Some(&conversation.owner)).await;
        let (lease, spec) = parts.sandboxes.lease(runner, (data, mounts), *limits, self.options.age_max);
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

    /// Memory for one more session of an owner. Kernels that wait make room, then sessions that run no cell: see
    /// [`share`](super::share).
    pub(super) fn reserve_memory(&self, who: &Principal, bytes: u64) -> Result<Reserved<'_>, Failure> {
        let whole = self.options.memory_bytes_max;
        loop {
            let max = whole.saturating_sub(self.prestarted.memory_bytes());
            match self.registry.capacity_for(who, bytes, max, whole) {
                SessionCapacity::Reserved(reserved) => return Ok(reserved),
                _ if self.prestarted.end_all() => {}
                SessionCapacity::Ends(ends) => ends.iter().for_each(|session| self.end(session, SessionEnd::Memory)),
                SessionCapacity::Full(full) => return Err(Failure::new(Code::SessionsFull, full.sentence())),
            }
        }
    }
}
