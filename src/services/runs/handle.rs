//! The right to a run of whoever began it, and what its loss means for the run.

use std::sync::Arc;

use futures_util::stream::BoxStream;

use super::{
    events,
    view::{Entry, RunView},
};
use crate::{
    domain::{error::Failure, event::Event, id::RunId},
    services::execution::{Captured, Report},
};

/// What becomes of a run when whoever began it goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// It is cancelled.
    #[default]
    CancelWhenLeft,
    /// It goes on.
    Detached,
}

/// A run that was begun here. Its drop does what the policy says.
pub struct RunHandle {
    pub(super) entry: Arc<Entry>,
    pub(super) policy: Policy,
}

impl Drop for RunHandle {
    fn drop(&mut self) {
        if self.policy == Policy::CancelWhenLeft {
            self.entry.run.cancel();
        }
    }
}

impl RunHandle {
    /// Which.
    pub fn id(&self) -> RunId {
        self.entry.run.id
    }

    /// As it is now.
    pub fn view(&self) -> RunView {
        self.entry.view()
    }

    /// Waits for the end. May be dropped and called again.
    ///
    /// # Errors
    /// Our own failures; a program that fails is a report.
    pub async fn finished(&self) -> Result<Arc<Report>, Failure> {
        self.entry.run.clone().finished().await
    }

    /// Asks for the run to be stopped; `finished` tells when the program is dead.
    pub fn cancel(&self) {
        self.entry.run.cancel();
    }

    /// Its events from this number on: see [`Runs::events`].
    pub fn events(&self, from: u64) -> BoxStream<'static, Event> {
        events::stream(Arc::clone(&self.entry.run.log), from)
    }

    /// What it printed after this event, as far as it is kept.
    pub fn output(&self, after: u64) -> (Captured, Captured) {
        self.entry.output(after)
    }

    /// From now on the run goes on without its caller.
    pub fn detach(mut self) {
        self.policy = Policy::Detached;
    }
}
