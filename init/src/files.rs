//! The files of the conversation, in a sandbox whose `/data` is its own: the server sends them before the program, and
//! what the program changed goes back once it has ended, or between the cells of a session.
//!
//! A program may change anything in `/data` while this reads and writes there, as the same user. So no link is
//! followed, nothing is opened that could wait, and changes are detected by times that no program can set.

mod collector;
mod walk;

use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps},
    io::Errno,
};

pub use self::collector::Collector;
use self::{collector::Todo, walk::Walk};

/// Where programs find them.
pub const ROOT: &str = "/data";

/// The longest path.
const PATH_BYTES_MAX: usize = 4096;

const ENTRY: u8 = 1;
const BYTES: u8 = 2;
const GONE: u8 = 3;
const END: u8 = 4;
/// From the server.
const COLLECT: u8 = 5;
/// To the server.
const TAKEN: u8 = 5;

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;

/// What a frame asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Order {
    /// More follows.
    Nothing,
    /// All of them have come; so many could not be written.
    Taken(u64),
    /// Send what was changed.
    Collect,
}

/// Distinguishes two states of an entry: its inode, its size, and when it or its inode was changed. For a folder it has
/// the mode alone, since the entries of the folder have stamps of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stamp {
    mode: u32,
    inode: u64,
    size: i64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(stat: &Stat) -> Self {
        let mode = stat.st_mode;
        if mode & S_IFMT == S_IFDIR {
            return Self { mode, ..Self::default() };
        }
        Self {
            mode,
            inode: stat.st_ino,
            size: stat.st_size,
            modified: (stat.st_mtime, nanoseconds(stat.st_mtime_nsec)),
            changed: (stat.st_ctime, nanoseconds(stat.st_ctime_nsec)),
        }
    }
}

fn nanoseconds(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or_default()
}

/// A file that is being written.
#[derive(Debug)]
struct Open {
    path: Vec<u8>,
    file: File,
    mode: u32,
    modified_s: i64,
}

/// The files as the server knows them.
#[derive(Debug)]
pub struct Files {
    root: OwnedFd,
    known: BTreeMap<Vec<u8>, Stamp>,
    /// The changes of the last round to the server, each with its new kind; 0 where the kind has changed.
    last_round: BTreeMap<Vec<u8>, u32>,
    open: Option<Open>,
    /// Folders get their modes last: one may be closed to writes. Those for which this is `false` were closed by a
    /// program and are open until then.
    modes: BTreeMap<Vec<u8>, (u32, bool)>,
    failed: u64,
}

impl Files {
    /// The files below a folder.
    pub fn open(root: &Path) -> io::Result<Self> {
        let root = rustix::fs::openat(CWD, root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let (known, last_round) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { root, known, last_round, open: None, modes: BTreeMap::new(), failed: 0 })
    }

    /// Takes one frame. With `strict`, the first entry that cannot be written is an error; otherwise it is counted.
    pub fn take(&mut self, payload: &[u8], strict: bool) -> io::Result<Order> {
        let (&kind, rest) = payload.split_first().ok_or_else(malformed)?;
        let done = match kind {
            ENTRY => self.entry(rest),
            BYTES => self.bytes(rest),
            GONE => self.remove(rest),
            END => self.close().and_then(|()| self.set_modes()),
            COLLECT => {
                if rest == [1] {
                    self.resend_last_round();
                }
                return Ok(Order::Collect);
            }
            _ => return Err(malformed()),
        };
        match done {
            Err(error) if strict || error.kind() == io::ErrorKind::InvalidData => {
                return Err(io::Error::new(error.kind(), format!("the files of the conversation: {error}")));
            }
            Err(_) => {
                // A part of a file is not left there, or it would go back as a change. What cannot be removed was not
                // written either.
                if let Some(open) = self.open.take() {
                    let _ = self.remove(&open.path);
                }
                self.failed += 1;
            }
            Ok(()) => {}
        }
        Ok(if kind == END { Order::Taken(std::mem::take(&mut self.failed)) } else { Order::Nothing })
    }

    fn entry(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.close()?;
        let (mode, rest) = bytes.split_first_chunk().ok_or_else(malformed)?;
        let (modified_s, path) = rest.split_first_chunk().ok_or_else(malformed)?;
        let (mode, modified_s, path) = (u32::from_be_bytes(*mode), i64::from_be_bytes(*modified_s), checked(path)?);
        let (parent, name) = self.parent(path, true)?;
        match mode & S_IFMT {
            S_IFDIR => {
                ignore(Errno::EXIST, rustix::fs::mkdirat(&parent, name, Mode::RWXU))?;
                self.opened(&parent, path)?;
                self.modes.insert(path.to_vec(), (mode, true));
            }
            S_IFREG => {
                // A new one: the old one may be open, or be a link.
                ignore(Errno::NOENT, rustix::fs::unlinkat(&parent, name, AtFlags::empty()))?;
                // Where there will be no new one, nothing goes back as removed.
                self.forget(path);
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = rustix::fs::openat(&parent, name, flags, Mode::RUSR | Mode::WUSR)?;
                self.open = Some(Open { path: path.to_vec(), file: file.into(), mode, modified_s });
            }
            _ => return Err(malformed()),
        }
        Ok(())
    }

    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        // Without an open file they are of one that could not be opened.
        self.open.as_mut().map_or(Ok(()), |open| open.file.write_all(bytes))
    }

    fn close(&mut self) -> io::Result<()> {
        let Some(Open { path, file, mode, modified_s }) = self.open.take() else { return Ok(()) };
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode & 0o1777))?;
        let then = Timespec { tv_sec: modified_s, tv_nsec: 0 };
        rustix::fs::futimens(&file, &Timestamps { last_access: then, last_modification: then })?;
        self.mark_sent(path, &rustix::fs::fstat(&file)?);
        Ok(())
    }

    /// The server sent this.
    fn mark_sent(&mut self, path: Vec<u8>, stat: &Stat) {
        self.last_round.remove(&path);
        self.known.insert(path, Stamp::of(stat));
    }

    fn forget(&mut self, path: &[u8]) {
        self.last_round.remove(path);
        self.known.remove(path);
    }

    fn remove(&mut self, path: &[u8]) -> io::Result<()> {
        self.close()?;
        let path = checked(path)?;
        self.forget(path);
        let removed = self.parent(path, false).and_then(|(parent, name)| {
            let remove = |flags| rustix::fs::unlinkat(&parent, name, flags);
            remove(AtFlags::empty()).or_else(|errno| match errno {
                Errno::ISDIR | Errno::PERM => remove(AtFlags::REMOVEDIR),
                errno => Err(errno),
            })
        });
        match removed {
            // A folder in which a program has put something stays.
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn set_modes(&mut self) -> io::Result<()> {
        // What is inside a folder comes before the folder. One that is gone does not keep others from their modes.
        let mut done = Ok(());
        for (path, (mode, is_sent)) in std::mem::take(&mut self.modes).into_iter().rev() {
            let set = self.set_mode(path, mode, is_sent);
            done = done.and(if is_sent { set } else { Ok(()) });
        }
        done
    }

    fn set_mode(&mut self, path: Vec<u8>, mode: u32, is_sent: bool) -> io::Result<()> {
        let folder = beneath(&self.root, &path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        rustix::fs::fchmod(&folder, Mode::from_raw_mode(mode & 0o1777))?;
        if is_sent {
            self.mark_sent(path, &rustix::fs::fstat(&folder)?);
        }
        Ok(())
    }

    /// The folder of a path, and the last name. With `makes`, folders above it that are missing are made.
    fn parent<'a>(&mut self, path: &'a [u8], makes: bool) -> Result<(OwnedFd, &'a [u8]), Errno> {
        let mut folder = beneath(&self.root, b".", OFlags::PATH | OFlags::DIRECTORY)?;
        for (end, _) in path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            let above = &path[..end];
            if makes {
                let made = rustix::fs::mkdirat(&folder, split(above).1, Mode::from_raw_mode(0o755));
                ignore(Errno::EXIST, made)?;
            }
            folder = self.opened(&folder, above)?;
        }
        Ok((folder, split(path).1))
    }

    /// A folder of `parent`. One that a program closed to itself is open until the modes are set.
    fn opened(&mut self, parent: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
        let name = split(path).1;
        let folder = beneath(parent, name, OFlags::PATH | OFlags::DIRECTORY)?;
        let mode = rustix::fs::fstat(&folder)?.st_mode & 0o1777;
        let open = Mode::from_raw_mode(mode) | Mode::RWXU;
        // A folder of another user stays as it is.
        if open.as_raw_mode() != mode && rustix::fs::chmodat(parent, name, open, AtFlags::empty()).is_ok() {
            self.modes.entry(path.to_vec()).or_insert((mode, false));
        }
        Ok(folder)
    }

    /// The server did not store all of the last round: it is sent again, also entries that are gone since.
    fn resend_last_round(&mut self) {
        for (path, kind) in std::mem::take(&mut self.last_round) {
            self.resend(path, kind);
        }
    }

    /// The next round tells of this entry, whether it is there then or not.
    fn resend(&mut self, path: Vec<u8>, kind: u32) {
        self.known.insert(path, Stamp { mode: kind, inode: u64::MAX, ..Stamp::default() });
    }

    /// Everything that was changed since the last round, as frames that are made one after the other. From here on, it
    /// counts as known to the server.
    pub fn collect(&mut self) -> io::Result<Collector> {
        let Walk { mut found, left_out, unread, .. } = Walk::of(&self.root)?;
        // What could not be looked at is not reported as removed, or the server would remove it.
        let is_unread = |path: &[u8]| unread.iter().any(|folder| is_within(path, folder));
        for (path, stamp) in self.known.iter().filter(|(path, _)| is_unread(path)) {
            found.entry(path.clone()).or_insert(*stamp);
        }
        let known = std::mem::replace(&mut self.known, found);
        let kind = |stamp: &Stamp| stamp.mode & S_IFMT;
        // From the deepest up, so that a folder is empty when its turn comes.
        let gone = known.iter().rev().filter(|(path, _)| !self.known.contains_key(*path));
        // Where one kind took the place of the other, the old one has to go first.
        let is_other_kind =
            |(path, old): &(&Vec<u8>, &Stamp)| self.known.get(*path).is_some_and(|now| kind(old) != kind(now));
        let replaced = known.iter().rev().filter(is_other_kind);
        let gone = gone.map(|(path, old)| (path, kind(old))).chain(replaced.map(|(path, _)| (path, 0)));
        let (mut todo, mut round) = (VecDeque::new(), BTreeMap::new());
        for (path, kind) in gone {
            round.insert(path.clone(), kind);
            todo.push_back(Todo::Gone(path.clone()));
        }
        for (path, stamp) in self.known.iter().filter(|(path, stamp)| known.get(*path) != Some(stamp)) {
            round.entry(path.clone()).or_insert(kind(stamp));
            todo.push_back(Todo::Entry(path.clone(), *stamp));
        }
        self.last_round = round;
        // The walk has opened those that were closed, which is no change of the program.
        for folder in self.known.values_mut().filter(|stamp| kind(stamp) == S_IFDIR) {
            folder.mode |= Mode::RWXU.as_raw_mode();
        }
        Ok(Collector { root: self.root.try_clone()?, todo, open: None, left_out })
    }
}

/// A frame that the server does not send.
fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a frame of files cannot be read")
}

fn checked(path: &[u8]) -> io::Result<&[u8]> {
    let is_name = |name: &[u8]| !name.is_empty() && name != b"." && name != b".." && !name.contains(&0);
    let fits = path.len() <= PATH_BYTES_MAX && path.split(|byte| *byte == b'/').all(is_name);
    if fits { Ok(path) } else { Err(malformed()) }
}

/// Takes one error for success.
fn ignore(harmless: Errno, done: Result<(), Errno>) -> Result<(), Errno> {
    done.or_else(|errno| if errno == harmless { Ok(()) } else { Err(errno) })
}

fn beneath(folder: impl AsFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(folder, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Whether a path is this folder or below it. An empty folder is the top.
fn is_within(path: &[u8], folder: &[u8]) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| folder.is_empty() || matches!(rest, [] | [b'/', ..]))
}

/// The path of the folder of a path, and its last name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let at = path.iter().rposition(|byte| *byte == b'/');
    at.map_or((&b"."[..], path), |at| (&path[..at], &path[at + 1..]))
}

/// The message to the server that all of its files have come.
pub fn taken(failed: u64) -> Vec<u8> {
    [&[TAKEN], &failed.to_be_bytes()[..]].concat()
}

#[cfg(test)]
mod tests;
