//! The root folder: opened once, owned by one server at a time; conversations are found and made below it.
//!
//! Everything directly in the root and directly in a conversation's folder is ours alone; programs reach only `files`.

use std::{
    fmt,
    io::{self, Read as _, Write as _},
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    sync::{PoisonError, atomic::AtomicBool},
};

use rustix::{
    fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, RenameFlags, ResolveFlags},
    io::Errno,
};

use super::{
    Conversation, Deleted, Handover, Owner, StoreError, Unfinished,
    delete::{self, Effort},
    fresh_name,
    own_disk::OwnDisks,
};
use crate::domain::id::InstanceId;
use crate::domain::owner::{ConversationKey, Principal};

/// Processes that may share one root.
const SERVERS_MAX: usize = 16;

/// Why the root folder cannot be used. Each sentence says what the operator should do.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// It cannot be made or opened.
    #[error("{root:?} cannot be opened: create it, or name a folder that the server's user may enter")]
    Open {
        /// The folder.
        root: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Nothing can be made in it.
    #[error("{root:?} cannot be written: give it to the server's user with chown, or choose another folder")]
    Unwritable {
        /// The folder.
        root: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Any user of the machine could plant things in it.
    #[error("{root:?} can be written by every user of this machine: run chmod o-w on it")]
    OpenToAll {
        /// The folder.
        root: PathBuf,
    },
    /// Too many servers have it.
    #[error("{root:?} is in use by {SERVERS_MAX} servers already: stop one, or choose another folder")]
    InUse {
        /// The folder.
        root: PathBuf,
    },
    /// The file that says which server this is does not.
    #[error("{file:?} does not hold an instance id: delete it if no sandbox of this server is left")]
    Damaged {
        /// The file.
        file: PathBuf,
    },
    /// No file system can be made and mounted for a conversation.
    #[error(
        "no disk can be made for a conversation: run the server as root on the engine's host with e2fsprogs installed, or \
             unset SANDBOX_QUOTA__HARD"
    )]
    OwnDisks {
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The kernel or a filter in front of it has no `openat2`, and there is no safe way to do without.
    #[error(
        "this system refuses openat2, without which planted links cannot be told: use Linux 5.6 or newer and, in a \
             container, an engine whose seccomp profile knows the call"
    )]
    NoOpenat2 {
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// The files of all conversations.
pub struct Store {
    pub(super) root: OwnedFd,
    incoming: OwnedFd,
    pub(super) trash: OwnedFd,
    /// `{root}/.nameless/{instance}`: folders of sandboxes that belong to no conversation yet.
    pub(super) unassigned: OwnedFd,
    pub(super) path: PathBuf,
    pub(super) instance: InstanceId,
    pub(super) handover: Handover,
    /// What new conversations get, where they get a disk of their own.
    pub(super) own_disks: Option<OwnDisks>,
    /// Trash of such disks that somebody has to empty.
    pub(super) unfinished: Unfinished,
    /// Held for its lock.
    _lock: std::fs::File,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("path", &self.path).field("instance", &self.instance).finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the root folder, makes it (0700) when there is none, and claims an identity in it for as long as this value
    /// lives. Several processes may share a root (one serves HTTP, another a client's standard streams): each has an
    /// identity, and so sandboxes, of its own. `owner` is the user that programs run as.
    ///
    /// # Errors
    /// [`StoreError::Root`] when the folder or the system is unfit.
    pub fn open(root: &Path, owner: Owner) -> Result<Self, StoreError> {
        Ok(Self::try_open(root, owner)?)
    }

    fn try_open(root: &Path, owner: Owner) -> Result<Self, RootError> {
        let unopened = |source: io::Error| RootError::Open { root: root.to_owned(), source };
        let unwritable = |source: io::Error| RootError::Unwritable { root: root.to_owned(), source };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(unopened)?;
        let path = std::path::absolute(root).map_err(unopened)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(&path, flags, Mode::empty()).map_err(|e| unopened(e.into()))?;
        let mode = rustix::fs::fstat(&handle).map_err(|e| unopened(e.into()))?.st_mode;
        // With the sticky bit (`/tmp`) others can still take a name first, so it does not help here.
        if mode & 0o002 != 0 {
            return Err(RootError::OpenToAll { root: root.to_owned() });
        }
        rustix::fs::openat2(&handle, ".", flags, Mode::empty(), ResolveFlags::BENEATH)
            .map_err(|source| RootError::NoOpenat2 { source: source.into() })?;
        let Claim { lock, instance, first } = claim(root, &path)?;
        let own = |name| own_folder(&handle, name).map_err(|errno| unwritable(errno.into()));
        let (incoming, trash) = (own(".incoming")?, own(".trash")?);
        let unassigned = own(".nameless")
            .and_then(|parent| own_folder(&parent, &instance.to_string()).map_err(|errno| unwritable(errno.into())))?;
        // Another server beside this one may be writing there now.
        if first {
            clear_incoming(&incoming).map_err(|errno| unwritable(errno.into()))?;
        }
        let handover = match rustix::process::geteuid().as_raw() {
            uid if uid == owner.uid => Handover::Same,
            0 => Handover::Chown(owner),
            _ => Handover::Open,
        };
        let unfinished = Unfinished::default();
        Ok(Self {
            root: handle,
            incoming,
            trash,
            unassigned,
            path,
            instance,
            handover,
            own_disks: None,
            unfinished,
            _lock: lock,
        })
    }

    /// Which server this is: made once, kept in the root folder.
    pub fn instance(&self) -> InstanceId {
        self.instance
    }

    /// The root folder, absolute.
    pub fn root(&self) -> &Path {
        &self.path
    }

    /// The conversation's folder, or `None` when it has none.
    ///
    /// # Errors
    /// [`StoreError`] when it is there and cannot be opened.
    pub fn open_conversation(&self, id: &ConversationKey) -> Result<Option<Conversation>, StoreError> {
        match self.enter(id) {
            Ok(conversation) => Ok(Some(conversation)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(StoreError::new("open", errno)),
        }
    }

    /// The conversation's folder, made when it has none. Any number of callers may do so at once.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`] on a full disk, and when something that is not ours stands in its place.
    pub fn create_conversation(&self, id: &ConversationKey) -> Result<Conversation, StoreError> {
        self.try_create(id).map_err(|errno| StoreError::new("create", errno))
    }

    fn try_create(&self, id: &ConversationKey) -> Result<Conversation, Errno> {
        self.make_owner_folder(id)?;
        if let Some(disks) = &self.own_disks
            && rustix::fs::statat(&self.root, folder(id), AtFlags::SYMLINK_NOFOLLOW).err() == Some(Errno::NOENT)
        {
            // Whole before anybody sees it. Where somebody was faster, theirs will do.
            let name = fresh_name();
            let made = self.make_with_disk(disks, &name).and_then(|()| self.name(&name, id));
            if made != Ok(true) {
                rustix::fs::renameat(&self.unassigned, &name, &self.trash, &name)?;
                self.purge_now(&name);
                made?;
            }
        }
        self.make(&self.root, &folder(id), &self.path.join(folder(id)))
    }

    /// The folder of an owner's conversations. Those of the default owner lie at the top.
    fn make_owner_folder(&self, key: &ConversationKey) -> Result<(), Errno> {
        match owner_folder(&key.owner) {
            Some(name) => own_folder(&self.root, &name).map(drop),
            None => Ok(()),
        }
    }

    /// Makes an unassigned folder a conversation's; `false` when it has one.
    pub(super) fn name(&self, unassigned: &str, id: &ConversationKey) -> Result<bool, Errno> {
        self.make_owner_folder(id)?;
        match rustix::fs::renameat_with(&self.unassigned, unassigned, &self.root, folder(id), RenameFlags::NOREPLACE) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST | Errno::NOTEMPTY) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// A conversation's folder with this name in `parent`, made where there is none. `path` is that of the folder.
    pub(super) fn make(&self, parent: &OwnedFd, name: &str, path: &Path) -> Result<Conversation, Errno> {
        let dir = own_folder(parent, name)?;
        match rustix::fs::mkdirat(&dir, "files", Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        let conversation = self.enter_in(parent, name, path)?;
        // Also when it was there: an earlier process may have ended between making it and giving it away. The program
        // may have changed its rights, but it cannot have put another folder here.
        let wanted = match self.handover {
            Handover::Chown(owner) => rustix::fs::fstat(&conversation.files)?.st_uid != owner.uid,
            Handover::Open => rustix::fs::fstat(&conversation.files)?.st_mode & 0o777 != 0o777,
            Handover::Same => false,
        };
        if wanted {
            self.handover.apply(&conversation.files, 0o700)?;
        }
        Ok(conversation)
    }

    pub(super) fn enter(&self, id: &ConversationKey) -> Result<Conversation, Errno> {
        self.enter_in(&self.root, &folder(id), &self.path.join(folder(id)))
    }

    pub(super) fn enter_in(&self, parent: &OwnedFd, name: &str, path: &Path) -> Result<Conversation, Errno> {
        let dir = open_own(parent, name)?;
        let files = match open_own(&dir, "files") {
            // The program owns the folder and may have closed it to itself, which is to us when we are the same user.
            // It cannot have replaced it, so the name is safe to use.
            Err(Errno::ACCESS) => {
                rustix::fs::chmodat(&dir, "files", Mode::RWXU, AtFlags::empty())?;
                open_own(&dir, "files")?
            }
            // A link of ours: no program can reach its place.
            Err(Errno::NOTDIR | Errno::LOOP) => return self.enter_disk(dir, path),
            other => other?,
        };
        let (incoming, trash) = (rustix::io::dup(&self.incoming)?, rustix::io::dup(&self.trash)?);
        let (data_dir, handover) = (path.join("files"), self.handover);
        Ok(Conversation { dir, files, incoming, trash, data_dir, handover, own_disk: None })
    }

    /// The folder that folders without a conversation are in.
    pub(super) fn unassigned_path(&self) -> PathBuf {
        self.path.join(".nameless").join(self.instance.to_string())
    }

    /// Takes apart what is in the trash, as far as somebody would wait for it.
    pub(super) fn purge_now(&self, name: &str) {
        if let Err(errno) = delete::purge(&self.trash, name.as_bytes(), &mut Effort::at_once()) {
            tracing::debug!(%errno, "a folder in the trash is left to the next start");
        }
    }

    /// Deletes a conversation and all its files: at once nothing has its name any more. `None` when there was none. A
    /// sandbox that still has the folder mounted keeps an empty one.
    ///
    /// # Errors
    /// [`StoreError`] when something is left that [`Store::empty_trash`] should try again.
    pub fn remove_conversation(&self, id: &ConversationKey) -> Result<Option<Deleted>, StoreError> {
        let name = fresh_name();
        match rustix::fs::renameat(&self.root, folder(id), &self.trash, &name) {
            Ok(()) => delete::purge(&self.trash, name.as_bytes(), &mut Effort::at_once())
                .map(Some)
                .map_err(|errno| StoreError::new("delete", errno)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(StoreError::new("delete", errno)),
        }
    }

    /// Deletes what was begun to be deleted, by this process or an earlier one, until `stop`. May take minutes where a
    /// program left millions of files; safe at any time.
    ///
    /// # Errors
    /// [`StoreError`] with the last thing that could not be deleted, after all the others were.
    pub fn empty_trash(&self, stop: &AtomicBool) -> Result<Deleted, StoreError> {
        self.try_empty_trash(stop).map_err(|errno| StoreError::new("delete", errno))
    }

    fn try_empty_trash(&self, stop: &AtomicBool) -> Result<Deleted, Errno> {
        let mut result = delete::empty(&self.trash, stop);
        loop {
            // One at a time, so that none is forgotten by an end in between.
            let next = self.unfinished.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(trash) = next else { return result };
            match delete::empty(&trash, stop) {
                Ok(Deleted::Wholly) => {}
                Ok(Deleted::Begun) => return Ok(Deleted::Begun),
                Err(errno) => result = Err(errno),
            }
        }
    }
}

/// The folder of an owner's conversations below the root. The default owner's conversations, and those of the isolation
/// check, lie at the top. No conversation id begins with `@`.
pub(super) fn owner_folder(owner: &Principal) -> Option<String> {
    (!owner.is_default() && !owner.is_self_test()).then(|| format!("@{}", owner.name()))
}

/// The folder of a conversation, relative to the root.
pub(super) fn folder(key: &ConversationKey) -> String {
    match owner_folder(&key.owner) {
        Some(owner) => format!("{owner}/{}", key.id),
        None => key.id.to_string(),
    }
}

/// Which of the servers on this root a process is, for as long as it holds the lock.
struct Claim {
    lock: std::fs::File,
    instance: InstanceId,
    /// Nobody else was here.
    first: bool,
}

/// Claims the first identity that no running process holds. A process that died left its identity free and its
/// sandboxes labelled with it, so whoever comes next takes over both.
fn claim(root: &Path, path: &Path) -> Result<Claim, RootError> {
    for number in 1..=SERVERS_MAX {
        let name = if number == 1 { ".instance".to_owned() } else { format!(".instance-{number}") };
        match claim_one(root, &path.join(name)) {
            Ok((lock, instance)) => return Ok(Claim { lock, instance, first: number == 1 }),
            Err(RootError::InUse { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Err(RootError::InUse { root: root.to_owned() })
}

/// Locks one identity and reads, or makes, the id in it.
fn claim_one(root: &Path, file: &Path) -> Result<(std::fs::File, InstanceId), RootError> {
    let unwritable = |source: io::Error| RootError::Unwritable { root: root.to_owned(), source };
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = std::fs::File::options();
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

/// Opens a folder whose parent only we can change. It may be a mount of its own.
pub(super) fn open_own(parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// Opens a folder of ours, made when it is missing.
pub(super) fn own_folder(parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => open_own(parent, name),
        Err(errno) => Err(errno),
    }
}

/// Throws away what a killed process was writing: files and empty folders.
pub(super) fn clear_incoming(incoming: &OwnedFd) -> Result<(), Errno> {
    for entry in Dir::read_from(incoming)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_bytes() == b"." || name.to_bytes() == b".." {
            continue;
        }
        match rustix::fs::unlinkat(incoming, name, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => rustix::fs::unlinkat(incoming, name, AtFlags::REMOVEDIR)?,
            other => other?,
        }
    }
    Ok(())
}
