//! The files that the server sends, and those that go back.

use std::io;

use super::{Phase, Sandbox, Verdict};
use crate::{
    files::{Files, Order, taken},
    frame::OutputFrame,
};

impl Sandbox {
    /// Before the program has started, a failed write is an error; later the program itself may prevent a write.
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
            // Where the system has no descriptor left, nothing is sent, and the server reports that files are lost.
            self.collector = self.files.as_mut().and_then(|files| files.collect().ok());
            self.push_files();
        }
    }

    /// Begins to send what the program changed, after EXIT was sent: to look for it may take longer than the server
    /// waits for EXIT.
    pub(super) fn send_last_files(&mut self) {
        if let Phase::Sending { verdict: Verdict::Done } = self.phase {
            self.collect_files();
            self.send();
        }
    }

    /// As many frames as the server takes soon.
    pub(super) fn push_files(&mut self) {
        while let (Some(collector), Some(files)) = (&mut self.collector, &mut self.files)
            && !self.outbox.is_full()
        {
            if !collector.push_next(files, &mut self.outbox) {
                self.collector = None;
            }
        }
    }
}
