//! The process that has the channels of a sandbox: its start, the socket between the two, and the port that it listens
//! on. What passes through that socket is between it and the server.
//!
//! It runs as the program's user, and the program can end it: then there are no channels any more, and nothing else
//! changes.

use std::{
    io,
    net::{Ipv4Addr, TcpListener},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::{Command, Stdio},
};

use crate::{
    flow::{Inbox, Progress},
    signals,
};

const PROGRAM: &str = "/sandbox-channels";

/// The port on 127.0.0.1, which every sandbox has for itself.
const PORT: u16 = 3128;

/// The process, as long as the socket between it and this one is open.
#[derive(Debug)]
pub struct Channels {
    socket: Option<UnixStream>,
    inbox: Inbox,
}

impl Channels {
    /// Opens the port and starts the process. Connections from then on are accepted, if later.
    ///
    /// # Errors
    /// The port is taken, or the image has no such program.
    pub fn start() -> io::Result<Self> {
        let explained = |error: io::Error| io::Error::other(format!("the channels of the sandbox: {error}"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, PORT)).map_err(explained)?;
        let (theirs, ours) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut starting = Command::new(PROGRAM);
        starting.env_clear().stdin(OwnedFd::from(listener)).stdout(OwnedFd::from(theirs)).stderr(Stdio::null());
        signals::with_empty_mask(|| starting.spawn()).map_err(explained)?;
        Ok(Self { socket: Some(ours), inbox: Inbox::default() })
    }

    /// Bytes from the server.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.socket.is_some() {
            self.inbox.push(bytes);
            self.write();
        }
    }

    /// Writes what the process takes.
    pub fn write(&mut self) {
        while let (Some(socket), true) = (&self.socket, self.inbox.has_pending()) {
            match self.inbox.write(socket) {
                Progress::Moved(_) => {}
                Progress::Later => return,
                Progress::Closed => self.socket = None,
            }
        }
        if self.socket.is_none() {
            self.inbox.discard();
        }
    }

    /// Where its bytes are read.
    pub fn output(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// Where bytes for it wait to be written.
    pub fn pending_input(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().filter(|_| self.inbox.has_pending()).map(AsFd::as_fd)
    }

    /// Whether reading frames must pause.
    pub fn is_full(&self) -> bool {
        self.inbox.is_full()
    }

    /// It has closed its end.
    pub fn ended(&mut self) {
        self.socket = None;
        self.inbox.discard();
    }
}
