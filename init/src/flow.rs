//! Bounded buffers: output to the server, and input to the program. All descriptors are non-blocking; an operation that
//! would block returns [`Progress::Later`].

use std::{
    collections::VecDeque,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use rustix::{
    buffer::spare_capacity,
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::Errno,
};

use crate::frame::{self, HEADER_BYTES, OutputFrame};

/// How much one read takes, and so the longest frame of output. With 256 KiB a download through the channels took a
/// sixth more processor time: the bytes leave the cache before they are written on.
pub const READ_BYTES: usize = 64 << 10;

/// High-water mark of the output to the server. Above it the program's pipes are not read, so the program blocks.
const OUTBOX_HIGH_BYTES: usize = 256 << 10;

/// High-water mark of the input to the program. Above it no frames are read, unless the program has not started.
const INBOX_HIGH_BYTES: usize = 256 << 10;

/// The result of a read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// This many bytes moved.
    Moved(usize),
    /// None at the moment.
    Later,
    /// None any more: the other end is gone.
    Closed,
}

impl Progress {
    fn of(outcome: Result<usize, Errno>) -> Self {
        match outcome {
            Ok(0) => Self::Closed,
            Ok(count) => Self::Moved(count),
            Err(Errno::AGAIN | Errno::INTR) => Self::Later,
            Err(_) => Self::Closed,
        }
    }
}

/// Makes reads and writes on `fd` return at once.
pub fn set_nonblocking(fd: impl AsFd) -> Result<(), Errno> {
    let flags = fcntl_getfl(&fd)?;
    fcntl_setfl(&fd, flags | OFlags::NONBLOCK)
}

/// Appends what there is, up to [`READ_BYTES`].
pub fn read(fd: impl AsFd, buffer: &mut Vec<u8>) -> Progress {
    buffer.reserve_exact(READ_BYTES);
    Progress::of(rustix::io::read(fd, spare_capacity(buffer)))
}

/// Reads and drops what comes until the other end is closed, or until the time is up.
pub fn until_closed(fd: impl AsFd, limit: Duration) {
    let (until, mut dropped) = (Instant::now() + limit, Vec::new());
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let Ok(timeout) = Timespec::try_from(left) else { return };
        if left.is_zero() {
            return;
        }
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return,
            Ok(_) if read(&fd, &mut dropped) == Progress::Closed => return,
            Ok(_) | Err(Errno::INTR) => dropped.clear(),
            Err(_) => return,
        }
    }
}

/// Frames that wait for the server.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
    held: bool,
}

impl Outbox {
    /// Sends nothing before [`Self::release`], where what is sent before the server has attached would be lost.
    pub fn new(held: bool) -> Self {
        Self { held, ..Self::default() }
    }

    /// The server reads.
    pub fn release(&mut self) {
        self.held = false;
    }

    /// Whether something is to be sent now.
    pub fn can_send(&self) -> bool {
        !self.held && !self.is_empty()
    }

    /// Adds a frame.
    pub fn push(&mut self, kind: OutputFrame, payload: &[u8]) {
        self.bytes.extend_from_slice(&frame::header(kind, payload.len()));
        self.bytes.extend_from_slice(payload);
    }

    /// Adds `before` and what one read of `fd` takes as a frame.
    pub fn push_read(&mut self, kind: OutputFrame, before: &[u8], fd: impl AsFd) -> Progress {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&frame::header(kind, 0));
        self.bytes.extend_from_slice(before);
        let progress = read(fd, &mut self.bytes);
        match progress {
            Progress::Moved(count) => {
                self.bytes[at..at + HEADER_BYTES].copy_from_slice(&frame::header(kind, before.len() + count));
            }
            Progress::Later | Progress::Closed => self.bytes.truncate(at),
        }
        progress
    }

    /// Whether everything is sent.
    pub fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Whether reading the program's output must pause.
    pub fn is_full(&self) -> bool {
        self.bytes.len() - self.sent >= OUTBOX_HIGH_BYTES
    }

    /// Sends what the server takes.
    pub fn send(&mut self, fd: impl AsFd) -> Progress {
        let progress = Progress::of(rustix::io::write(fd, &self.bytes[self.sent..]));
        if let Progress::Moved(count) = progress {
            self.sent += count;
            if self.is_empty() {
                self.bytes.clear();
                self.sent = 0;
            } else if self.sent >= OUTBOX_HIGH_BYTES {
                self.bytes.drain(..self.sent);
                self.sent = 0;
            }
        }
        progress
    }
}

/// Input that waits for the program, and whether more will come.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: VecDeque<u8>,
    ended: bool,
}

impl Inbox {
    /// Adds input.
    pub fn push(&mut self, bytes: &[u8]) {
        if !self.ended {
            self.bytes.extend(bytes);
        }
    }

    /// No more will come.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Whether all input has been written and no more will come.
    pub fn is_over(&self) -> bool {
        self.ended && self.bytes.is_empty()
    }

    /// Whether input waits to be written.
    pub fn has_pending(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Whether reading frames must pause.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= INBOX_HIGH_BYTES
    }

    /// Writes `bytes` after what is pending; what is not taken now is pending. `false` when the other end is closed.
    pub fn write_all(&mut self, bytes: &[u8], fd: impl AsFd) -> bool {
        let mut written = 0;
        while !self.has_pending() && written < bytes.len() {
            match Progress::of(rustix::io::write(&fd, &bytes[written..])) {
                Progress::Moved(count) => written += count,
                Progress::Later => break,
                Progress::Closed => return false,
            }
        }
        self.push(&bytes[written..]);
        true
    }

    /// Writes what is pending, as far as it is taken now. `false` when the other end is closed.
    pub fn write(&mut self, fd: impl AsFd) -> bool {
        while self.has_pending() {
            match Progress::of(rustix::io::write(&fd, self.bytes.as_slices().0)) {
                Progress::Moved(count) => drop(self.bytes.drain(..count)),
                Progress::Later => return true,
                Progress::Closed => return false,
            }
        }
        true
    }

    /// Drops pending input: the program has closed its end.
    pub fn discard(&mut self) {
        self.bytes.clear();
    }
}
