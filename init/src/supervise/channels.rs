//! The bytes between the server and the process that has the channels. They are relayed, never read.

use super::Sandbox;
use crate::{
    flow::{self, Progress, READ_BYTES},
    frame::OutputFrame,
};

impl Sandbox {
    /// Forwards one read, so that the program's own output has its turn in between.
    pub(super) fn read_channels(&mut self) {
        let Some(channels) = &mut self.channels else { return };
        let Some(fd) = channels.output() else { return };
        let mut buffer = vec![0; READ_BYTES];
        match flow::read(fd, &mut buffer) {
            Progress::Moved(count) => self.outbox.push(OutputFrame::Channels, &buffer[..count]),
            Progress::Later => {}
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
