//! Files in frames: those of a conversation on their way into a sandbox whose `/data` is its own, and what a program
//! changed on its way back. `runners/README.md` has the layout.

use bytes::{Buf as _, Bytes};

use super::{FILES_IN, FrameError, frame};

const ENTRY: u8 = 1;
const BYTES: u8 = 2;
const GONE: u8 = 3;
const END: u8 = 4;
/// To a sandbox.
const COLLECT: u8 = 5;
/// From a sandbox.
const TAKEN: u8 = 5;

/// The longest path in a message of a sandbox.
const PATH_BYTES_MAX: usize = 4096;

/// The bits of a mode that say what an entry is.
const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;

/// What a sandbox says of its files. Untrusted: a program may have chosen each path, mode and time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FileMessage {
    /// A file whose bytes follow, or a folder.
    Entry {
        is_folder: bool,
        /// The permission bits.
        mode: u32,
        modified_unix_s: i64,
        path: Bytes,
    },
    /// A piece of the file.
    Bytes(Bytes),
    /// Something is not there any more.
    Gone(Bytes),
    /// All changes have come, except for so many links, pipes, sockets and entries that are too deep.
    End { left_out: u64 },
    /// What the server sent was written, except for so many entries.
    Taken { failed: u64 },
}

/// A file or a folder.
pub(crate) fn entry(is_folder: bool, mode: u32, modified_unix_s: i64, path: &[u8]) -> Bytes {
    let mode = (mode & 0o1777) | if is_folder { S_IFDIR } else { S_IFREG };
    files(ENTRY, &[&mode.to_be_bytes()[..], &modified_unix_s.to_be_bytes(), path].concat())
}

/// A piece of the file that was named last, shorter than [`PAYLOAD_BYTES_MAX`](super::PAYLOAD_BYTES_MAX).
pub(crate) fn bytes(piece: &[u8]) -> Bytes {
    files(BYTES, piece)
}

/// Something is not there any more.
pub(crate) fn gone(path: &[u8]) -> Bytes {
    files(GONE, path)
}

/// All of them were sent.
pub(crate) fn end() -> Bytes {
    files(END, &[])
}

/// Asks for what was changed; with `again` also for what was reported last, of which not all was stored.
pub(crate) fn collect(again: bool) -> Bytes {
    files(COLLECT, if again { &[1] } else { &[] })
}

fn files(kind: u8, rest: &[u8]) -> Bytes {
    frame(FILES_IN, &[&[kind], rest].concat())
}

/// A message from the payload of a frame.
pub(super) fn message(mut payload: Bytes) -> Result<FileMessage, FrameError> {
    let unreadable = FrameError::Unreadable { kind: super::FILES_OUT };
    let kind = payload.try_get_u8().map_err(|_| unreadable)?;
    let number = |mut bytes: Bytes| match bytes.len() {
        8 => Ok(bytes.get_u64()),
        _ => Err(unreadable),
    };
    let path = |bytes: Bytes| if bytes.len() <= PATH_BYTES_MAX { Ok(bytes) } else { Err(unreadable) };
    Ok(match kind {
        ENTRY => {
            let mode = payload.try_get_u32().map_err(|_| unreadable)?;
            let modified_unix_s = payload.try_get_i64().map_err(|_| unreadable)?;
            let is_folder = match mode & S_IFMT {
                S_IFDIR => true,
                S_IFREG => false,
                _ => return Err(unreadable),
            };
            FileMessage::Entry { is_folder, mode: mode & 0o777, modified_unix_s, path: path(payload)? }
        }
        BYTES => FileMessage::Bytes(payload),
        GONE => FileMessage::Gone(path(payload)?),
        END => FileMessage::End { left_out: number(payload)? },
        TAKEN => FileMessage::Taken { failed: number(payload)? },
        _ => return Err(unreadable),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_laid_out_as_documented() {
        assert_eq!(entry(true, 0o40_755, 1, b"a")[..], *b"\x09\0\0\0\x0e\x01\0\0\x41\xed\0\0\0\0\0\0\0\x01a");
        assert_eq!(entry(false, 0o6_644, 0, b"a")[6..10], [0, 0, 0x81, 0xa4], "no set-user-id");
        assert_eq!((&bytes(b"x")[5..], &gone(b"y")[5..]), (&b"\x02x"[..], &b"\x03y"[..]));
        assert_eq!((&end()[5..], &collect(false)[5..]), (&b"\x04"[..], &b"\x05"[..]));
        assert_eq!(collect(true)[5..], *b"\x05\x01");
    }

    #[test]
    fn messages_that_break_the_rules_are_refused() {
        let read = |bytes: &'static [u8]| message(Bytes::from_static(bytes));
        let entry = FileMessage::Entry { is_folder: false, mode: 0o755, modified_unix_s: 2, path: "a/b".into() };
        assert_eq!(read(b"\x01\0\0\x8b\xed\0\0\0\0\0\0\0\x02a/b"), Ok(entry));
        assert_eq!(read(b"\x04\0\0\0\0\0\0\0\x07"), Ok(FileMessage::End { left_out: 7 }));
        assert_eq!(read(b"\x05\0\0\0\0\0\0\0\0"), Ok(FileMessage::Taken { failed: 0 }));
        for bad in [&b""[..], b"\0", b"\x06", b"\x01\0\0\x81", b"\x01\0\0\xa1\xff\0\0\0\0\0\0\0\0l", b"\x04", b"\x05\0"]
        {
            assert!(message(Bytes::copy_from_slice(bad)).is_err(), "{bad:?}");
        }
        for head in [&b"\x01\0\0\x81\xa4\0\0\0\0\0\0\0\0"[..], b"\x03"] {
            let named = |bytes| message([head, &vec![b'n'; bytes][..]].concat().into());
            assert!(named(PATH_BYTES_MAX).is_ok() && named(PATH_BYTES_MAX + 1).is_err(), "{head:?}");
        }
    }
}
