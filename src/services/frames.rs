//! The frames of the runner protocols 1 and 2 (`runners/README.md`): what is sent to a sandbox, and what comes
//! out of one.
//!
//! Frames from a sandbox are untrusted: a length is checked before anything is kept, JSON is read into small structs,
//! and after a frame that breaks the rules nothing more is read.

pub(crate) mod files;

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

pub(crate) use self::files::FileMessage;
use crate::domain::{Environment, StreamKind, text};

/// Longest payload of a frame, in bytes.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 1 << 20;
const HEAD_BYTES: usize = 5;

const CONFIG: u8 = 0x01;
const PROGRAM: u8 = 0x02;
const GO: u8 = 0x03;
const STDIN: u8 = 0x04;
const STDIN_END: u8 = 0x05;
const SIGNAL: u8 = 0x06;
const TO_CHANNELS: u8 = 0x07;
const READY: u8 = 0x81;
const STDOUT: u8 = 0x82;
const STDERR: u8 = 0x83;
const EXIT: u8 = 0x84;
const ERROR: u8 = 0x85;
const FROM_CHANNELS: u8 = 0x86;
const FILES_IN: u8 = 0x09;
const FILES_OUT: u8 = 0x87;

/// A frame from a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RunnerMessage {
    /// The runner can take a program.
    Ready(ReadyReport),
    Output(StreamKind, Bytes),
    /// The program and everything it started have ended.
    Exit(ExitReport),
    /// The sandbox cannot go on.
    Error(String),
    /// Bytes of the process that has the channels; none when it has ended.
    Channels(Bytes),
    /// Files of its `/data`.
    Files(FileMessage),
}

/// How a program exited, as process 1 of its sandbox reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExitReport {
    pub status: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// CPU time, in milliseconds.
    pub cpu_ms: Option<u64>,
    /// Highest memory use of the sandbox, in bytes.
    pub memory_peak_bytes: Option<u64>,
    /// Processes that the kernel killed for memory.
    #[serde(default)]
    pub oom_kills: u64,
    /// Processes and threads that were refused.
    #[serde(default)]
    pub forks_refused: u64,
    /// Process 1 ended it, at its own deadline.
    #[serde(default)]
    pub killed_by: Option<KilledBy>,
}

/// Why process 1 ended a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum KilledBy {
    Deadline,
}

/// How far a runner has loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReadyReport {
    /// What most programs need is loaded.
    #[serde(default)]
    pub warm: bool,
    /// Memory use of the sandbox in bytes, where it is known.
    pub memory_bytes: Option<u64>,
}

#[derive(Deserialize)]
struct ErrorText {
    message: String,
}

/// How a program or a kernel is started.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Start<'a> {
    pub args: &'a [String],
    #[serde(skip_serializing_if = "Environment::is_empty")]
    pub env: &'a Environment,
    /// Its time limit, and how much longer process 1 waits before it ends it itself.
    pub wall_ms: u64,
    pub grace_ms: u64,
    /// The kernel; `None` for a program.
    pub kernel: Option<&'a str>,
    /// Whether the sandbox has channels.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub channels: bool,
    /// The certificate that the sandbox has to trust, in PEM.
    pub authority: Option<&'a str>,
}

impl<'a> Start<'a> {
    /// The request of a program without channels.
    pub(crate) fn new(args: &'a [String], env: &'a Environment, wall: Duration, grace: Duration) -> Self {
        let (wall_ms, grace_ms) = (text::ms(wall), text::ms(grace));
        Self { args, env, wall_ms, grace_ms, kernel: None, channels: false, authority: None }
    }

    fn config(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// Why a sandbox is not read any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("a frame of {length} bytes is longer than the longest")]
    TooLong { length: usize },
    #[error("a frame of the unknown type {kind:#04x}")]
    UnknownType { kind: u8 },
    #[error("a frame of the type {kind:#04x} that cannot be read")]
    Unreadable { kind: u8 },
}

fn put(out: &mut BytesMut, kind: u8, payload: &[u8]) {
    debug_assert!(payload.len() <= PAYLOAD_BYTES_MAX);
    out.put_u8(kind);
    out.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
    out.put_slice(payload);
}

/// All frames of one request, in one piece: a small program is one write. With `open`, the input goes on with [`stdin`]
/// and ends with [`stdin_end`].
pub(crate) fn request(program: &[u8], start: &Start<'_>, stdin: &[u8], open: bool) -> Bytes {
    let config = start.config();
    let mut out = BytesMut::with_capacity(config.len() + program.len() + stdin.len() + 64);
    put(&mut out, CONFIG, &config);
    for piece in program.chunks(PAYLOAD_BYTES_MAX) {
        put(&mut out, PROGRAM, piece);
    }
    // Input that fits goes before GO; the rest follows the program's start, since it is taken only as the program
    // reads.
    let (early, late) = stdin.split_at(stdin.len().min(PAYLOAD_BYTES_MAX));
    if !early.is_empty() {
        put(&mut out, STDIN, early);
    }
    if late.is_empty() && !open {
        put(&mut out, STDIN_END, &[]);
    }
    put(&mut out, GO, &[]);
    for piece in late.chunks(PAYLOAD_BYTES_MAX) {
        put(&mut out, STDIN, piece);
    }
    if !late.is_empty() && !open {
        put(&mut out, STDIN_END, &[]);
    }
    out.freeze()
}

fn frame(kind: u8, payload: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(HEAD_BYTES + payload.len());
    put(&mut out, kind, payload);
    out.freeze()
}

/// A piece of the program's standard input, of at most [`PAYLOAD_BYTES_MAX`].
pub(crate) fn stdin(piece: &[u8]) -> Bytes {
    frame(STDIN, piece)
}

/// The program's standard input is complete.
pub(crate) fn stdin_end() -> Bytes {
    frame(STDIN_END, &[])
}

/// Asks process 1 to send the program a signal.
pub(crate) fn signal(number: u8) -> Bytes {
    frame(SIGNAL, &[number])
}

/// Bytes for the process that has the channels, at most [`PAYLOAD_BYTES_MAX`]; none end them.
pub(crate) fn channels(piece: &[u8]) -> Bytes {
    frame(TO_CHANNELS, piece)
}

/// Puts frames together from chunks of any size.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    pending: BytesMut,
}

impl Decoder {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// The next whole frame, if one is there. Not to be called again after an error.
    pub(crate) fn next(&mut self) -> Result<Option<RunnerMessage>, FrameError> {
        let Some(head) = self.pending.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let [kind, length @ ..] = *head;
        let length = u32::from_be_bytes(length) as usize;
        if !(READY..=FILES_OUT).contains(&kind) {
            return Err(FrameError::UnknownType { kind });
        }
        if length > PAYLOAD_BYTES_MAX {
            return Err(FrameError::TooLong { length });
        }
        if self.pending.len() < HEAD_BYTES + length {
            return Ok(None);
        }
        // A copy, since a slice would keep what was read before and after it: a name of a few bytes several MiB.
        let payload = Bytes::copy_from_slice(&self.pending[HEAD_BYTES..HEAD_BYTES + length]);
        self.pending.advance(HEAD_BYTES + length);
        message(kind, payload).map(Some)
    }
}

fn message(kind: u8, payload: Bytes) -> Result<RunnerMessage, FrameError> {
    fn read<'a, T: Deserialize<'a>>(kind: u8, payload: &'a [u8]) -> Result<T, FrameError> {
        // An array would be read as a struct, field by field.
        if payload.trim_ascii_start().first() != Some(&b'{') {
            return Err(FrameError::Unreadable { kind });
        }
        serde_json::from_slice(payload).map_err(|_| FrameError::Unreadable { kind })
    }
    match kind {
        STDOUT => Ok(RunnerMessage::Output(StreamKind::Stdout, payload)),
        STDERR => Ok(RunnerMessage::Output(StreamKind::Stderr, payload)),
        FROM_CHANNELS => Ok(RunnerMessage::Channels(payload)),
        FILES_OUT => files::message(payload).map(RunnerMessage::Files),
        READY => read(kind, &payload).map(RunnerMessage::Ready),
        EXIT => {
            let report: ExitReport = read(kind, &payload)?;
            // One of the two, and in its range: a status that no process can have would be passed on as one.
            let fits = match (report.status, report.signal) {
                (Some(status), None) => (0..=255).contains(&status),
                (None, Some(signal)) => (1..=64).contains(&signal),
                _ => false,
            };
            if fits { Ok(RunnerMessage::Exit(report)) } else { Err(FrameError::Unreadable { kind }) }
        }
        ERROR => {
            let ErrorText { message } = read(kind, &payload)?;
            Ok(RunnerMessage::Error(message.chars().take(200).collect()))
        }
        _ => Err(FrameError::UnknownType { kind }),
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{AllowedVariables, environment::check_args};

    fn all(bytes: &[u8], piece: usize) -> Result<Vec<RunnerMessage>, FrameError> {
        let mut decoder = Decoder::default();
        let mut found = Vec::new();
        for piece in bytes.chunks(piece) {
            decoder.push(piece);
            while let Some(message) = decoder.next()? {
                found.push(message);
            }
        }
        Ok(found)
    }

    #[test]
    fn decoder_reads_frames_in_any_chunks() {
        let bytes = [
            frame(READY, br#"{"protocol":1}"#),
            frame(READY, br#"{"protocol":1,"warm":true,"memoryBytes":7,"later":[]}"#),
            frame(STDOUT, b"out"),
            frame(STDERR, b""),
            frame(EXIT, br#"{"signal":9,"oomKills":1,"killedBy":"deadline"}"#),
        ]
        .concat();
        let whole = all(&bytes, bytes.len()).expect("frames");
        assert_eq!(whole[1], RunnerMessage::Ready(ReadyReport { warm: true, memory_bytes: Some(7) }));
        assert!(matches!(
            whole[4],
            RunnerMessage::Exit(ExitReport { signal: Some(9), oom_kills: 1, killed_by: Some(_), .. })
        ));
        for piece in 1..bytes.len() {
            assert_eq!(all(&bytes, piece).as_ref(), Ok(&whole), "in pieces of {piece}");
        }
    }

    #[test]
    fn message_keeps_nothing_of_what_was_read_with_it() {
        let long = frame(READY, format!("{{\"later\":\"{}\"}}", "x".repeat(PAYLOAD_BYTES_MAX / 2)).as_bytes());
        let mut decoder = Decoder::default();
        decoder.push(&[long, frame(FILES_OUT, b"\x03a"), frame(STDOUT, b"out")].concat());
        let read = decoder.pending.as_ptr_range();
        assert!(matches!(decoder.next(), Ok(Some(RunnerMessage::Ready(_)))));
        for _ in 0..2 {
            let (RunnerMessage::Files(FileMessage::Gone(kept)) | RunnerMessage::Output(_, kept)) =
                decoder.next().expect("right").expect("a message")
            else {
                panic!("another message")
            };
            assert!(!read.contains(&kept.as_ptr()), "it has memory of its own");
        }
    }

    #[test]
    fn decoder_refuses_frames_that_break_the_rules() {
        for bad in [
            frame(CONFIG, b"{}"),
            frame(0x00, b""),
            frame(0xff, b""),
            Bytes::from_static(&[STDOUT, 0xff, 0xff, 0xff, 0xff]),
            Bytes::from_static(&[STDOUT, 0, 0x10, 0, 1]),
            frame(EXIT, b"{}"),
            frame(EXIT, br#"{"status":0,"signal":9}"#),
            frame(EXIT, br#"{"status":256}"#),
            frame(EXIT, br#"{"status":-1}"#),
            frame(EXIT, br#"{"signal":0}"#),
            frame(EXIT, br#"{"status":"0"}"#),
            frame(EXIT, b"status 0"),
            frame(READY, b"[]"),
            frame(ERROR, b"\xff"),
        ] {
            assert!(all(&bad, 4096).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn longest_arguments_and_variables_fit_into_a_frame() {
        let args = |count| vec!["\u{1}".repeat(3000); count];
        let most = (1..256).take_while(|count| check_args(&args(*count)).is_ok()).last().expect("some fit");
        let env = serde_json::json!({"K": "\u{1}".repeat((64 << 10) - 1)});
        let env: Environment = serde_json::from_value(env).expect("an environment");
        AllowedVariables::parse("K").expect("a name").check(&env).expect("they are taken");
        let (args, second) = (args(most), Duration::from_secs(1));
        let bytes = request(b"", &Start::new(&args, &env, second, second), b"", false);
        let length = u32::from_be_bytes(*bytes[1..].first_chunk().expect("a length")) as usize;
        // The server adds variables and a certificate of its own.
        assert!(length + (64 << 10) <= PAYLOAD_BYTES_MAX, "{length}");
    }

    #[test]
    fn request_is_laid_out_as_documented() {
        let none = Environment::default();
        let args = ["a".to_owned()];
        let start = Start::new(&args, &none, Duration::from_secs(1), Duration::from_secs(2));
        let bytes = request(b"print(1)", &start, b"", false);
        let expected = [
            frame(CONFIG, br#"{"args":["a"],"wallMs":1000,"graceMs":2000}"#),
            frame(PROGRAM, b"print(1)"),
            frame(STDIN_END, b""),
            frame(GO, b""),
        ];
        assert_eq!(bytes, expected.concat());
        let some: Environment = serde_json::from_str(r#"{"K":"v"}"#).expect("an environment");
        let (kernel, authority) = (Some("python3"), Some("PEM"));
        let of_session = Start { args: &[], env: &some, kernel, channels: true, authority, ..start };
        let session = request(&[], &of_session, &[], true);
        let config = concat!(
            r#"{"args":[],"env":{"K":"v"},"wallMs":1000,"graceMs":2000,"kernel":"python3","#,
            r#""channels":true,"authority":"PEM"}"#
        );
        assert_eq!(session, [frame(CONFIG, config.as_bytes()), frame(GO, b"")].concat());
        let long = vec![b'x'; PAYLOAD_BYTES_MAX + 1];
        let bytes = request(&long, &start, &long, false);
        let go = bytes.windows(5).position(|w| w == [GO, 0, 0, 0, 0]).expect("GO");
        assert!(bytes[go..].starts_with(&[GO, 0, 0, 0, 0, STDIN, 0, 0, 0, 1, b'x', STDIN_END]));
        for input in [&b""[..], b"early", &long] {
            let open = request(b"x", &start, input, true);
            let closed = request(b"x", &start, input, false);
            assert_eq!(open.len() + stdin_end().len(), closed.len(), "only the end is missing");
        }
        assert_eq!((&stdin(b"ab")[..], &stdin_end()[..]), (&b"\x04\0\0\0\x02ab"[..], &b"\x05\0\0\0\0"[..]));
        assert_eq!(channels(b"ab")[..], b"\x07\0\0\0\x02ab"[..]);
    }
}
