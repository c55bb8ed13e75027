//! The bytes between the server and the process that has the channels. They are relayed, never read.

use super::Sandbox;
use crate::{flow::Progress, frame::OutputFrame};

impl Sandbox {
    /// A program has connected to the port, and there is no process yet.
    pub(super) fn start_channels(&mut self) {
        if let Some(channels) = &mut self.channels {
            channels.start();
        }
    }

    /// Forwards one read, so that the program's own output has its turn in between.
    pub(super) fn read_channels(&mut self) {
        let Some(channels) = &mut self.channels else { return };
        let Some(fd) = channels.output() else { return };
        match self.outbox.push_read(OutputFrame::Channels, &[], fd) {
            Progress::Moved(_) | Progress::Later => {}
            Progress::Closed => {
                channels.ended();
                self.outbox.push(OutputFrame::Channels, &[]);
            }
        }
        self.send();
    }

    pub(super) fn write_channels(&mut self) {
        if let Some(channels) = &mut self.channels {
            channels.write();
        }
    }
}
