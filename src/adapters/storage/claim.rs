//! Which server this process is among those on a root: each holds an identity, which is locked while it runs. And why a
//! root cannot be used.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, OFlags},
    io::Errno,
};

use crate::domain::InstanceId;

/// Processes that may share one root.
const SERVERS_MAX: usize = 16;

/// Why the root folder cannot be used. Each sentence says what the operator should do.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// It cannot be made or opened.
    #[error("{root:?} cannot be opened: create it, or name a folder that the server's user may enter")]
    Open { root: PathBuf, source: io::Error },
    /// Nothing can be made in it.
    #[error("{root:?} cannot be written: give it to the server's user with chown, or choose another folder")]
    Unwritable { root: PathBuf, source: io::Error },
    /// Any user of the machine could plant things in it.
    #[error("{root:?} can be written by every user of this machine: run chmod o-w on it")]
    OpenToAll { root: PathBuf },
    /// Too many servers have it.
    #[error("{root:?} is in use by {SERVERS_MAX} servers already: stop one, or choose another folder")]
    InUse { root: PathBuf },
    /// The command wants it for itself.
    #[error("{root:?} is in use by a server: stop it first")]
    Served { root: PathBuf },
    /// The file with the instance id has other content.
    #[error("{file:?} does not hold an instance id: delete it if no sandbox of this server is left")]
    Damaged { file: PathBuf },
    /// No file system can be made and mounted for a conversation.
    #[error(
        "no disk can be made for a conversation: run the server as root on the engine's host with e2fsprogs \
         installed, or unset SANDBOX_QUOTA__HARD"
    )]
    OwnDisks { source: io::Error },
    /// The kernel or a filter in front of it has no `openat2`, and there is no safe way to do without.
    #[error(
        "this system refuses openat2, without which links cannot be refused safely: use Linux 5.6 or newer and, in a \
             container, an engine whose seccomp profile knows the call"
    )]
    NoOpenat2 { source: io::Error },
}

/// The identity of this process among the servers on this root, while it holds the lock.
pub(super) struct Claim {
    pub lock: File,
    pub instance: InstanceId,
    /// No other process held an identity.
    pub alone: bool,
}

/// Claims the first identity from a number on that no running process holds, in a root with this absolute path. A dead
/// process leaves its identity and the sandboxes labelled with it: the next process takes over both.
pub(super) fn claim(root: &Path, path: &Path, from: usize) -> Result<Claim, RootError> {
    for number in from..=SERVERS_MAX {
        match claim_one(root, &path.join(identity(number))) {
            Ok((lock, instance)) => {
                let alone = number == 1 && others_ended(root, path).is_ok();
                return Ok(Claim { lock, instance, alone });
            }
            Err(RootError::InUse { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Err(RootError::InUse { root: root.to_owned() })
}

/// Claims the first identity, and sees that no process holds another.
pub(super) fn claim_alone(root: &Path, path: &Path) -> Result<Claim, RootError> {
    let served = |error| match error {
        RootError::InUse { root } => RootError::Served { root },
        other => other,
    };
    let (lock, instance) = claim_one(root, &path.join(identity(1))).map_err(served)?;
    others_ended(root, path).map_err(served)?;
    Ok(Claim { lock, instance, alone: true })
}

/// Whether no process holds an identity beside the first.
fn others_ended(root: &Path, path: &Path) -> Result<(), RootError> {
    let mut others = (2..=SERVERS_MAX).map(|number| path.join(identity(number))).filter(|file| file.exists());
    others.try_for_each(|other| claim_one(root, &other).map(drop))
}

/// The file of an identity.
fn identity(number: usize) -> String {
    if number == 1 { ".instance".to_owned() } else { format!(".instance-{number}") }
}

/// Locks one identity and reads, or makes, the id in it.
fn claim_one(root: &Path, file: &Path) -> Result<(File, InstanceId), RootError> {
    let unwritable = |source: io::Error| RootError::Unwritable { root: root.to_owned(), source };
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(flags.bits().cast_signed());
    let mut lock = options.open(file).map_err(unwritable)?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(RootError::InUse { root: root.to_owned() }),
        Err(errno) => return Err(unwritable(errno.into())),
    }
    let mut text = String::new();
    let damaged = || RootError::Damaged { file: file.to_owned() };
    (&mut lock).take(1024).read_to_string(&mut text).map_err(|_| damaged())?;
    if text.is_empty() {
        let instance = InstanceId::new();
        writeln!(lock, "{instance}").and_then(|()| lock.sync_all()).map_err(unwritable)?;
        return Ok((lock, instance));
    }
    let instance = text.trim_end().parse().map_err(|_| damaged())?;
    Ok((lock, instance))
}
