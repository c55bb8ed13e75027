//! The event sources that the loop polls: only those that can make progress in the current phase.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    stdio::{stdin, stdout},
};

use super::{Phase, Sandbox, Source};
use crate::child::Child;

impl Sandbox {
    /// Everything that is ready now, after waiting for the first.
    pub(super) fn wait(&self) -> io::Result<Vec<Source>> {
        let sources = self.sources();
        let mut polled: Vec<_> = sources.iter().map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        let timeout = self.next_timer().and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = polled.iter().zip(&sources).filter(|(polled, _)| !polled.revents().is_empty());
        Ok(ready.map(|(_, (source, ..))| *source).collect())
    }

    fn sources(&self) -> Vec<(Source, BorrowedFd<'_>, PollFlags)> {
        let mut sources = vec![(Source::Children, self.child_ends.as_fd(), PollFlags::IN)];
        let is_over = matches!(self.phase, Phase::Sending { .. });
        // Before the start nothing can take the input, but the start itself must get through.
        let takes_frames = self.frames_open && !is_over && !(self.request.started() && self.inbox.is_full());
        if takes_frames && !self.channels.is_full() {
            sources.push((Source::Frames, stdin(), PollFlags::IN));
        }
        if self.outbox.can_send() {
            sources.push((Source::Server, stdout(), PollFlags::OUT));
        }
        sources.extend(control(Source::Successor, self.successor.as_ref()));
        sources.extend(control(Source::Control, self.child.as_ref()));
        if let Phase::Running { .. } = self.phase {
            sources.extend(self.channels.port().map(|fd| (Source::Port, fd, PollFlags::IN)));
            let from = self.channels.output().filter(|_| !self.outbox.is_full());
            sources.extend(from.map(|fd| (Source::FromChannels, fd, PollFlags::IN)));
            sources.extend(self.channels.pending_input().map(|fd| (Source::ToChannels, fd, PollFlags::OUT)));
        }
        let Some(child) = &self.child else { return sources };
        if !self.outbox.is_full() && !matches!(self.phase, Phase::Standby) {
            let pipes = [(Source::Stdout, &child.stdout), (Source::Stderr, &child.stderr)];
            let open = pipes.into_iter().filter_map(|(source, fd)| Some((source, fd.as_ref()?.as_fd(), PollFlags::IN)));
            sources.extend(open);
        }
        if let (Some(stdin), true) = (&child.stdin, self.request.started() && self.inbox.has_pending()) {
            sources.push((Source::Stdin, stdin.as_fd(), PollFlags::OUT));
        }
        sources
    }
}

/// The control socket of a warm child, and what it is watched for.
fn control(source: Source, child: Option<&Child>) -> Option<(Source, BorrowedFd<'_>, PollFlags)> {
    let (fd, waits) = child?.control()?;
    Some((source, fd, if waits { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }))
}
