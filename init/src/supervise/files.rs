//! The files that the server sends, and those that go back.

use std::io;

use super::{Phase, Sandbox};
use crate::{
    files::{Files, Order, taken},
    frame::OutputFrame,
};

impl Sandbox {
    /// Before the program has started nothing may be missing; later it may be in the way itself.
    pub(super) fn take_files(&mut self, payload: &[u8]) -> io::Result<()> {
        let files = match &mut self.files {
            Some(files) => files,
            none => none.insert(Files::open(&self.options.data)?),
        };
        match files.take(payload, matches!(self.phase, Phase::Standby))? {
            Order::Nothing => return Ok(()),
            Order::Taken(failed) => self.outbox.push(OutputFrame::Files, &taken(failed)),
            Order::Collect => self.collect_files(),
        }
        self.send();
        Ok(())
    }

    /// Begins to send what was changed. What is being sent already comes first, as a part of it.
    pub(super) fn collect_files(&mut self) {
        if self.collector.is_none() {
            // A folder that cannot be read has no changes that could be sent.
            self.collector = self.files.as_mut().and_then(|files| files.collect().ok());
            self.push_files();
        }
    }

    /// As many frames as the server takes soon.
    pub(super) fn push_files(&mut self) {
        while let Some(collector) = &mut self.collector
            && !self.outbox.is_full()
        {
            if !collector.push_next(&mut self.outbox) {
                self.collector = None;
            }
        }
    }
}
