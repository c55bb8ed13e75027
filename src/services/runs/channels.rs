//! The network of one run: its channels, where a policy holds for it, and where its connections are told.

use std::sync::Arc;

use super::task::RunTask;
use crate::services::network::{Channels, Sink};

impl RunTask {
    /// The channels of its sandbox, where a policy holds for it.
    pub(super) fn channels(&mut self) -> Option<Channels> {
        let access = self.access.take().filter(|_| self.runner.channels)?;
        let channels = self.service.parts.network.open(access, &self.run.conversation, &self.run.language);
        channels.link.reporter.to(self.network_sink());
        Some(channels)
    }

    /// Where its connections and calls are told.
    pub(super) fn network_sink(&self) -> Sink {
        let run = Arc::clone(&self.run);
        Box::new(move |event| run.log.add(event))
    }
}
