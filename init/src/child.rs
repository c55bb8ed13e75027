//! The one child: how it is started, before the program is known (warm) or with it (cold), and the three pipes and
//! the control socket that lead to it. `process_tree` tracks which processes live and which have ended.

use std::{
    ffi::OsString,
    io,
    net::Shutdown,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Command, Stdio},
};

use rustix::{
    io::{FdFlags, fcntl_setfd},
    process::Pid,
};

use crate::{
    flow::{self, Inbox, Progress},
    process_tree,
    request::Config,
    signals,
};

/// Names the control socket to a warm child.
const CONTROL_VARIABLE: &str = "SANDBOX_CONTROL_FD";

/// Set where the server attaches only after the start: nothing is sent before its first frame.
pub const ATTACHED_VARIABLE: &str = "SANDBOX_ATTACHED_LATER";

/// Set for a warm child that must load nothing because another child loads the libraries.
const SPARE_VARIABLE: &str = "SANDBOX_SPARE";

/// A message of a warm child on its control socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmMessage {
    /// `u`: it can take a program.
    Up,
    /// `w`: it has loaded what most programs need, or more than when it said so last.
    Warm,
    /// `k` and four bytes, big endian: this process shares its memory and does nothing.
    Keeper(Pid),
}

/// A started child.
#[derive(Debug)]
pub struct Child {
    pub pid: Pid,
    /// `None` once its input has ended.
    pub stdin: Option<OwnedFd>,
    /// `None` once the child has closed it.
    pub stdout: Option<OwnedFd>,
    /// `None` once the child has closed it.
    pub stderr: Option<OwnedFd>,
    /// The socket of a warm child that has not become the program yet.
    pub control: Option<Control>,
}

/// This end of the socket of a warm child.
#[derive(Debug)]
pub struct Control {
    socket: UnixStream,
    handover: Inbox,
    received: Vec<u8>,
}

impl Child {
    /// Starts `command` before the program is known.
    ///
    /// # Errors
    /// What keeps a process from starting.
    pub fn warm(command: &[OsString], is_spare: bool) -> io::Result<Self> {
        // The child's end first: it gets the lower number, which is 3 where nothing else is open.
        let (theirs, ours) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        fcntl_setfd(&theirs, FdFlags::empty())?;
        let mut starting = starting(command);
        starting.env(CONTROL_VARIABLE, theirs.as_raw_fd().to_string()).stdin(Stdio::piped());
        if is_spare {
            starting.env(SPARE_VARIABLE, "1");
        }
        let mut child = Self::spawn(&mut starting)?;
        child.control = Some(Control { socket: ours, handover: Inbox::default(), received: Vec::new() });
        Ok(child)
    }

    /// Starts `command` for a program that is already in its file.
    pub fn cold(command: &[OsString], config: &Config, has_input: bool) -> io::Result<Self> {
        let mut starting = starting(command);
        starting.args(&config.args).envs(&config.env);
        starting.stdin(if has_input { Stdio::piped() } else { Stdio::null() });
        Self::spawn(&mut starting)
    }

    fn spawn(starting: &mut Command) -> io::Result<Self> {
        // The standard library gives the child the default SIGPIPE.
        starting.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = signals::with_empty_mask(|| starting.spawn())?;
        let pid = Pid::from_child(&child);
        let child = Self {
            pid,
            stdin: child.stdin.take().map(OwnedFd::from),
            stdout: child.stdout.take().map(OwnedFd::from),
            stderr: child.stderr.take().map(OwnedFd::from),
            control: None,
        };
        for fd in [&child.stdin, &child.stdout, &child.stderr].into_iter().flatten() {
            flow::set_nonblocking(fd)?;
        }
        Ok(child)
    }

    /// Hands the request over to a warm child, which becomes the program. `false` when it cannot be reached.
    pub fn hand_over(&mut self, config: &Config, has_input: bool) -> bool {
        let Some(control) = &mut self.control else { return false };
        control.handover.push(&handover(config, has_input));
        control.handover.end();
        self.pass_on()
    }

    /// Continues the handover. `false` when the child has closed its socket.
    pub fn pass_on(&mut self) -> bool {
        let Some(control) = &mut self.control else { return true };
        if !control.handover.write(&control.socket) {
            return false;
        }
        // The child may still report that it is up. The socket stays open for reading, so that the write does not kill
        // it.
        !control.handover.is_over() || control.socket.shutdown(Shutdown::Write).is_ok()
    }

    /// The control socket, and whether bytes wait to be sent on it.
    pub fn control(&self) -> Option<(BorrowedFd<'_>, bool)> {
        self.control.as_ref().map(|control| (control.socket.as_fd(), control.handover.has_pending()))
    }

    /// The messages received since the last call, and whether the child's end is still open.
    pub fn messages(&mut self) -> (Vec<WarmMessage>, bool) {
        let Some(control) = &mut self.control else { return (Vec::new(), false) };
        match flow::read(&control.socket, &mut control.received) {
            Progress::Moved(_) => (take_messages(&mut control.received), true),
            progress => (Vec::new(), progress == Progress::Later),
        }
    }
}

/// Removes the complete messages from `received`. Unknown bytes are skipped.
fn take_messages(received: &mut Vec<u8>) -> Vec<WarmMessage> {
    let mut messages = Vec::new();
    loop {
        let (length, message) = match received.as_slice() {
            [b'u', ..] => (1, Some(WarmMessage::Up)),
            [b'w', ..] => (1, Some(WarmMessage::Warm)),
            [b'k', a, b, c, d, ..] => {
                (5, Pid::from_raw(i32::from_be_bytes([*a, *b, *c, *d]).max(0)).map(WarmMessage::Keeper))
            }
            [] | [b'k', ..] => return messages,
            _ => (1, None),
        };
        received.drain(..length);
        messages.extend(message);
    }
}

fn starting(command: &[OsString]) -> Command {
    let mut starting = Command::new(&command[0]);
    starting.args(&command[1..]);
    // A cluster tells every container where its API server is.
    let is_hidden = |name: &OsString| name == ATTACHED_VARIABLE || name.as_encoded_bytes().starts_with(b"KUBERNETES_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_hidden(name)) {
        starting.env_remove(name);
    }
    if let Ok(folder) = std::env::current_dir() {
        // The disposition that a shell leaves.
        starting.env("PWD", folder);
    }
    if !process_tree::is_process_1() {
        // Elsewhere `kill 0` in a program would reach this process; process 1 is out of its reach, and there the
        // program stays in the group it would have without an init, so that setsid() works in it.
        starting.process_group(0);
    }
    starting
}

/// Length (four bytes, big endian), then strings that each end in NUL: "pipe" or "null" for what standard input shall
/// be, the number of arguments, the arguments, and the variables as NAME=value.
fn handover(config: &Config, has_input: bool) -> Vec<u8> {
    let mut text = Vec::new();
    let mut add = |part: &str| {
        text.extend_from_slice(part.as_bytes());
        text.push(0);
    };
    add(if has_input { "pipe" } else { "null" });
    add(&config.args.len().to_string());
    config.args.iter().for_each(|argument| add(argument));
    config.env.iter().for_each(|(name, value)| add(&format!("{name}={value}")));
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes()[..], &text].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_parsed_across_reads_and_unknown_bytes_are_skipped() {
        let keeper = Pid::from_raw(0x0102).map(WarmMessage::Keeper);
        let mut received = b"u?k\0\0\x01".to_vec();
        assert_eq!(take_messages(&mut received), [WarmMessage::Up]);
        received.extend_from_slice(b"\x02wk\xff\xff\xff\xff");
        assert_eq!(take_messages(&mut received), [keeper.expect("positive"), WarmMessage::Warm]);
        assert!(received.is_empty());
    }

    #[test]
    fn handover_carries_input_flag_arguments_and_environment() {
        let config = Config {
            args: vec!["a b".to_owned(), String::new()],
            env: [("K".to_owned(), "v=w".to_owned())].into(),
            ..Config::default()
        };
        assert_eq!(handover(&config, true), b"\0\0\0\x12pipe\x002\0a b\0\0K=v=w\0");
        assert_eq!(handover(&Config::default(), false), b"\0\0\0\x07null\x000\0");
    }
}
