//! The root folder: opened once, owned by one server at a time; conversations are found and made below it.
//!
//! Everything directly in the root and directly in a conversation's folder is ours alone; programs reach only `files`.

use std::{
    io,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::fs::DirBuilderExt as _,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, ResolveFlags, Uid};

use super::{
    Background, Errno, Folder,
    claim::{Claim, RootError, claim, claim_alone},
    fresh_name,
    handover::HandoverMethod,
    own::{assign, discard, discard_all, names, open_own, own_folder},
    own_disk::OwnDisks,
    project::ProjectQuota,
};
use crate::domain::{ConversationKey, InstanceId, Principal, RunnerUsers};

/// The folders of isolation checks, which are conversations of no owner.
const CHECKS: &str = ".checks";

const ROOT_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The files of all conversations.
#[derive(Debug)]
pub struct DiskStorage {
    pub(super) root: OwnedFd,
    /// `{root}/.incoming/{instance}`: files of this server that are being written.
    pub(super) incoming: Arc<OwnedFd>,
    pub(super) trash: Arc<OwnedFd>,
    /// `{root}/.nameless/{instance}`: folders of sandboxes that belong to no conversation yet.
    pub(super) unassigned: Arc<OwnedFd>,
    pub(super) path: PathBuf,
    pub(super) instance: InstanceId,
    pub(super) method: HandoverMethod,
    pub(super) users: RunnerUsers,
    /// Set when new conversations get a disk of their own.
    pub(super) own_disks: Option<OwnDisks>,
    /// Set when new conversations get a project of their own.
    pub(super) projects: Option<ProjectQuota>,
    pub(super) background: Background,
    /// Holds the lock.
    pub(super) lock: std::fs::File,
}

impl DiskStorage {
    /// Opens the root folder, makes it (0700) when there is none, and claims an identity in it for as long as this
    /// value lives. Several processes may share a root (one serves HTTP, another a client's standard streams): each has
    /// an identity, and so sandboxes, of its own. `users` are those that programs run as; one that is not root hands
    /// files only to the usual one.
    ///
    /// # Errors
    /// When the folder or the system is unfit.
    pub fn at(root: &Path, users: RunnerUsers) -> Result<Self, RootError> {
        Self::claiming(root, users, |path| claim(root, path, 1))
    }

    /// As [`Self::at`], for a command beside a server: never takes the identity that a server takes first.
    ///
    /// # Errors
    /// As [`Self::at`].
    pub fn shared(root: &Path, users: RunnerUsers) -> Result<Self, RootError> {
        Self::claiming(root, users, |path| claim(root, path, 2))
    }

    /// As [`Self::at`], while no other process uses the root.
    ///
    /// # Errors
    /// As [`Self::at`]; [`RootError::Served`].
    pub fn exclusive(root: &Path, users: RunnerUsers) -> Result<Self, RootError> {
        Self::claiming(root, users, |path| claim_alone(root, path))
    }

    fn claiming(
        root: &Path,
        users: RunnerUsers,
        claim: impl FnOnce(&Path) -> Result<Claim, RootError>,
    ) -> Result<Self, RootError> {
        let unopened = |source: io::Error| RootError::Open { root: root.to_owned(), source };
        let unwritable = |errno: Errno| RootError::Unwritable { root: root.to_owned(), source: errno.into() };
        let handle = open_root(root, 0o700)?;
        let path = std::path::absolute(root).map_err(unopened)?;
        rustix::fs::openat2(&handle, ".", ROOT_FLAGS, Mode::empty(), ResolveFlags::BENEATH)
            .map_err(|source| RootError::NoOpenat2 { source: source.into() })?;
        let Claim { lock, instance, alone } = claim(&path)?;
        let own = |name| own_folder(&handle, name).map_err(unwritable);
        let (all_incoming, trash, nameless) = (own(".incoming")?, Arc::new(own(".trash")?), own(".nameless")?);
        let name = instance.to_string();
        let of_this = |all: &OwnedFd| own_folder(all, &name).map_err(unwritable);
        let (incoming, unassigned) = (of_this(&all_incoming)?, of_this(&nameless)?);
        let checks = own(CHECKS)?;
        let folders = [&all_incoming, &incoming, &*trash, &nameless, &unassigned, &checks];
        give_to_owner(&handle, folders.map(OwnedFd::as_fd).into_iter().chain([lock.as_fd()]));
        let background = Background::start().map_err(unopened)?;
        // What a killed process left.
        discard_all(&incoming, &trash, &background).map_err(unwritable)?;
        if alone {
            // Also of servers that did not start again, and of versions in which all wrote to one folder. A server that
            // starts at this moment has its folder open already, so that of an identity stays.
            for left in names(&all_incoming).map_err(unwritable)? {
                let emptied = if left.parse::<InstanceId>().is_ok() {
                    open_own(&all_incoming, &left).and_then(|folder| discard_all(&folder, &trash, &background))
                } else {
                    discard(&all_incoming, &left, &trash, &background)
                };
                emptied.map_err(unwritable)?;
            }
            discard_all(&checks, &trash, &background).map_err(unwritable)?;
        }
        let (method, users) = Self::users_of(users);
        Ok(Self {
            root: handle,
            incoming: Arc::new(incoming),
            trash,
            unassigned: Arc::new(unassigned),
            path,
            instance,
            method,
            users,
            own_disks: None,
            projects: None,
            background,
            lock,
        })
    }

    pub(super) fn try_create(&self, id: &ConversationKey) -> Result<Folder, Errno> {
        self.make_owner_folder(id)?;
        if let Some(disks) = &self.own_disks
            && rustix::fs::statat(&self.root, folder(id), AtFlags::SYMLINK_NOFOLLOW).err() == Some(Errno::NOENT)
        {
            // Complete before it gets its name. When another caller was faster, its folder is used.
            let name = fresh_name();
            let made = self.make_with_disk(disks, &name).and_then(|()| self.assign(&name, id));
            if made != Ok(true) {
                discard(&self.unassigned, &name, &self.trash, &self.background)?;
                made?;
            }
        }
        let make = || self.make(&self.root, &folder(id), &self.path.join(folder(id)));
        // Another server gave the name to a folder of its own while this one was empty (`assign_by_rename`).
        make().or_else(|errno| if matches!(errno, Errno::NOENT | Errno::STALE) { make() } else { Err(errno) })
    }

    /// The folder of an owner's conversations. Those of the default owner lie at the top.
    fn make_owner_folder(&self, key: &ConversationKey) -> Result<(), Errno> {
        match owner_folder(&key.owner) {
            Some(name) => own_folder(&self.root, &name).map(drop),
            None => Ok(()),
        }
    }

    /// Makes an unassigned folder a conversation's; `false` when it has one.
    pub(super) fn assign(&self, unassigned: &str, id: &ConversationKey) -> Result<bool, Errno> {
        self.make_owner_folder(id)?;
        assign(&self.unassigned, unassigned, &self.root, &folder(id))
    }

    /// A conversation's folder with this name in `parent`, made if it does not exist. `path` is the folder's.
    pub(super) fn make(&self, parent: &OwnedFd, name: &str, path: &Path) -> Result<Folder, Errno> {
        let dir = own_folder(parent, name)?;
        self.make_files(&dir)?;
        let mut conversation = self.enter_in(parent, name, path)?;
        self.hand_over(&mut conversation)?;
        Ok(conversation)
    }

    pub(super) fn enter(&self, id: &ConversationKey) -> Result<Folder, Errno> {
        self.enter_in(&self.root, &folder(id), &self.path.join(folder(id)))
    }

    pub(super) fn enter_in(&self, parent: &OwnedFd, name: &str, path: &Path) -> Result<Folder, Errno> {
        let dir = open_own(parent, name)?;
        let files = match open_own(&dir, "files") {
            // The program owns the folder and may have removed its own permissions, which are ours when we are the same
            // user. It cannot have replaced the folder, so the name is safe to use.
            Err(Errno::ACCESS) => {
                rustix::fs::chmodat(&dir, "files", Mode::RWXU, AtFlags::empty())?;
                open_own(&dir, "files")?
            }
            // A link of ours, which no program can replace.
            Err(Errno::NOTDIR | Errno::LOOP) => return self.enter_disk(dir, path),
            other => other?,
        };
        Ok(Folder {
            dir: Arc::new(dir),
            handover: self.handover_in(&files)?,
            files: Arc::new(files),
            incoming: Arc::clone(&self.incoming),
            trash: Arc::clone(&self.trash),
            data_dir: path.join("files"),
            on_own_disk: false,
            background: self.background.clone(),
        })
    }

    pub(super) fn unassigned_path(&self) -> PathBuf {
        self.path.join(".nameless").join(self.instance.to_string())
    }
}

/// Gives what root made in a folder to its owner, as whom a server may run: `doctor` and `backup` may be run by root.
/// What belongs to a third user stays so: that of a server which runs as another user than the owner.
fn give_to_owner<'h>(folder: &OwnedFd, made: impl Iterator<Item = BorrowedFd<'h>>) {
    let Ok(stat) = rustix::fs::fstat(folder) else { return };
    if stat.st_uid != 0 && rustix::process::geteuid().is_root() {
        let of_root = |handle: &BorrowedFd<'h>| rustix::fs::fstat(handle).is_ok_and(|made| made.st_uid == 0);
        for handle in made.filter(of_root) {
            // Where it cannot be given, such as on NFS, the server says which folder it cannot write.
            let _ = rustix::fs::fchown(handle, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)));
        }
    }
}

/// Opens a folder that the operator named, made when it is missing. No other user of the machine may write to it.
pub(super) fn open_root(root: &Path, mode: u32) -> Result<OwnedFd, RootError> {
    let unopened = |source: io::Error| RootError::Open { root: root.to_owned(), source };
    std::fs::DirBuilder::new().recursive(true).mode(mode).create(root).map_err(unopened)?;
    let handle = rustix::fs::open(root, ROOT_FLAGS, Mode::empty()).map_err(|errno| unopened(errno.into()))?;
    let stat = rustix::fs::fstat(&handle).map_err(|errno| unopened(errno.into()))?;
    // With the sticky bit (`/tmp`) others can still take a name first, so it does not help here.
    if stat.st_mode & 0o002 != 0 {
        return Err(RootError::OpenToAll { root: root.to_owned() });
    }
    Ok(handle)
}

/// The folder of an owner's conversations below the root. The default owner's conversations lie at the top. No
/// conversation id begins with `@` or a dot.
pub(super) fn owner_folder(owner: &Principal) -> Option<String> {
    if owner.is_self_test() {
        return Some(CHECKS.to_owned());
    }
    (!owner.is_default()).then(|| format!("@{}", owner.name()))
}

/// The folder of a conversation, relative to the root.
pub(super) fn folder(key: &ConversationKey) -> String {
    match owner_folder(&key.owner) {
        Some(owner) => format!("{owner}/{}", key.id),
        None => key.id.to_string(),
    }
}
