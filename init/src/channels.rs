//! The process that has the channels of a sandbox: the port that it listens on, its start by the first connection, and
//! the socket between the two. Process 1 does not interpret the bytes of that socket.
//!
//! It runs as the program's user, and the program can end it: then the sandbox has no channels, and nothing else
//! changes.

use std::{
    fs, io,
    net::{Ipv4Addr, TcpListener},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt as _},
    },
    process::{self, Command, Stdio},
};

use nix::unistd::fork;

use crate::{flow::Inbox, signals};

const PROGRAM: &str = "/sandbox-channels";

/// The port on 127.0.0.1, which every sandbox has for itself.
const PORT: u16 = 3128;

/// The port until the process is started, then the process, as long as the socket between it and this one is open. By
/// default neither, for a program without channels.
#[derive(Debug, Default)]
pub struct Channels {
    port: Option<TcpListener>,
    socket: Option<UnixStream>,
    inbox: Inbox,
    /// The server has ended the channels. The process learns it from the end of its socket.
    is_over: bool,
}

impl Channels {
    /// Opens the port. The process is started for the first connection: most programs make none.
    ///
    /// # Errors
    /// The port is taken, or the image has no such program.
    pub fn open() -> io::Result<Self> {
        let explained = |error: io::Error| io::Error::other(format!("the channels of the sandbox: {error}"));
        fs::metadata(PROGRAM).map_err(explained)?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, PORT)).map_err(explained)?;
        // A connection that is gone must not be waited for.
        port.set_nonblocking(true).map_err(explained)?;
        Ok(Self { port: Some(port), ..Self::default() })
    }

    /// Where a connection is waited for while there is no process.
    pub fn port(&self) -> Option<BorrowedFd<'_>> {
        self.port.as_ref().map(AsFd::as_fd)
    }

    /// Starts the process, which accepts the connections that wait, and gives it what the server sent before. Where
    /// there is none, as when the program has all processes that a sandbox may have, a connection is closed, and the
    /// next one tries again.
    pub fn start(&mut self) {
        let Some(port) = self.port.take() else { return };
        if let Ok(socket) = spawn(PROGRAM, &port) {
            self.socket = Some(socket).filter(|_| !self.is_over);
            self.write();
        } else {
            drop(port.accept());
            self.port = Some(port);
        }
    }

    /// Bytes from the server; none end the channels.
    pub fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            self.is_over = true;
            return self.ended();
        }
        match &self.socket {
            // Where the process has closed its end, reading finds that too, and then the server is notified.
            Some(socket) if !self.inbox.write_all(bytes, socket) => self.inbox.discard(),
            None if self.port.is_some() => self.inbox.push(bytes),
            _ => {}
        }
    }

    /// Writes what the process takes.
    pub fn write(&mut self) {
        if let Some(socket) = &self.socket
            && !self.inbox.write(socket)
        {
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

    /// The process or the server has closed its end.
    pub fn ended(&mut self) {
        self.socket = None;
        self.inbox.discard();
    }
}

/// The process with this port; its socket, which ends where `program` cannot be executed.
///
/// Forked and not spawned, since the standard library waits until a child executes its program. The sandbox's program
/// can stop all children before that, and then this process would wait. Before it executes, a child is
/// as little dumpable as this process, so the sandbox's program can neither trace it nor take its descriptors.
fn spawn(program: &str, port: &TcpListener) -> io::Result<UnixStream> {
    let (theirs, ours) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let mut starting = Command::new(program);
    starting.env_clear().stdin(OwnedFd::from(port.try_clone()?)).stdout(OwnedFd::from(theirs)).stderr(Stdio::null());
    signals::with_empty_mask(|| {
        #[expect(unsafe_code, reason = "this process has one thread, so its child may do whatever it may")]
        let forked = unsafe { fork() }?;
        if forked.is_child() {
            let _ = starting.exec();
            process::exit(1);
        }
        Ok(ours)
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn process_is_not_waited_for_until_it_executes_its_program() {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let mut socket = spawn("/no such program", &port).expect("a process");
        socket.set_nonblocking(false).expect("a socket");
        assert_eq!(socket.read(&mut [0]).expect("its end"), 0);
    }

    #[test]
    fn process_learns_the_end_of_the_channels_from_its_socket() {
        let (mut theirs, ours) = UnixStream::pair().expect("a socket");
        let mut channels = Channels { socket: Some(ours), ..Channels::default() };
        channels.push(b"ab");
        channels.push(b"");
        let mut got = Vec::new();
        theirs.read_to_end(&mut got).expect("its end");
        assert_eq!(got, b"ab");
        assert!(channels.output().is_none());
    }

    #[test]
    fn end_of_the_process_that_a_write_finds_is_still_read() {
        let (theirs, ours) = UnixStream::pair().expect("a socket");
        let mut channels = Channels { socket: Some(ours), ..Channels::default() };
        drop(theirs);
        channels.push(b"ab");
        assert!(channels.output().is_some() && channels.pending_input().is_none());
    }
}
