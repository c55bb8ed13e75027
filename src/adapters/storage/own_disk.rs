//! A file system of its own for each conversation: a mounted image of a fixed size, which no program can overfill.
//! Unlinked open files count too, and its usage is known without a walk.
//!
//! ```text
//! {root}/{id}/disk.ext4          the image; sparse, so that it takes only the space of its content
//! {root}/{id}/disk/              its mount point
//! {root}/{id}/disk/.incoming/    like those of the root: a file is moved into place within one mount. Locked shared by
//!                                those who write there
//! {root}/{id}/disk/.trash/
//! {root}/{id}/disk/files/        `/data` of the conversation's programs
//! {root}/{id}/files              a link to it, for people
//! ```
//!
//! The content of a conversation's folder shows its kind. A disk is mounted when its conversation is opened and
//! unmounted when it was not used for long; a mount belongs to the machine and not to this process, so a killed process
//! leaves nothing to repair. A mounted disk moves with its folder, also while a sandbox uses it.

use std::{
    ffi::OsStr,
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
    sync::Arc,
    time::Duration,
};

use rustix::{
    fs::{AtFlags, FlockOperation, OFlags, StatVfs},
    io::Errno,
    mount::UnmountFlags,
};
use tracing::{debug, warn};

use super::{
    DiskStorage, Folder, RootError, command, errno_of, fresh_name,
    handover::Handover,
    ignore, open_beneath,
    own::{discard, discard_all, names, new_file, open_own, own_folder},
};
use crate::ports::storage::{Storage as _, Usage};

const IMAGE: &str = "disk.ext4";
const POINT: &str = "disk";
const FILES: &str = "files";
/// How long making, finding or mounting a disk may take: usually some milliseconds.
const COMMAND_MAX: Duration = Duration::from_mins(1);
/// How long repairing a large disk may take.
const CHECK_MAX: Duration = Duration::from_mins(10);
const BLOCK_BYTES: u64 = 4096;
/// Size of an inode, in bytes: large enough for times in nanoseconds, which changed files are found by.
const INODE_BYTES: u64 = 256;
/// Inodes in use on an empty disk: ten of ext4's, and our three folders.
const INODES_OURS: u64 = 13;
/// Blocks in use on an empty disk: the top folder and our three.
const BLOCKS_OURS: u64 = 4;
/// Another process may unmount a disk between the check and the opening, but not each time.
const TRIES: usize = 8;

/// How large new disks are.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnDisks {
    image_bytes: u64,
    inodes: u64,
}

impl OwnDisks {
    /// The disk is a little larger than the quota: usually the measurement notices that a program passes the quota, and
    /// the disk stops a program that is faster than the measurement.
    fn holding(most: &Usage) -> Self {
        let inodes = most.entries.saturating_add(INODES_OURS + 64);
        let held = most.bytes.saturating_add(inodes.saturating_mul(INODE_BYTES));
        // Bitmaps, descriptors of groups and what ext4 keeps back (2 %, at most 4096 blocks).
        let image_bytes = held.saturating_add(held / 40).saturating_add(2 << 20).next_multiple_of(BLOCK_BYTES);
        Self { image_bytes, inodes }
    }

    /// Makes a disk in an empty folder of ours, and mounts it.
    fn make(&self, folder: &OwnedFd, path: &Path, handover: Handover) -> io::Result<()> {
        rustix::fs::ftruncate(new_file(folder, IMAGE)?, self.image_bytes)?;
        let inodes = self.inodes.to_string();
        let options = ["-q", "-F", "-b", "4096", "-I", "256", "-m", "0", "-N", &inodes];
        // No journal: a disk that was cut off is checked before it is mounted again. Nothing is initialized in advance.
        let features = ["-O", "^has_journal,^resize_inode", "-E", "root_owner=0:0,lazy_itable_init=1,nodiscard"];
        let words = options.into_iter().chain(features).map(OsStr::new);
        command::run("mkfs.ext4", words.chain([path.join(IMAGE).as_os_str()]), &[0], COMMAND_MAX)?;
        own_folder(folder, POINT)?;
        attach(path)?;
        let top = open_own(folder, POINT)?;
        rustix::fs::unlinkat(&top, "lost+found", AtFlags::REMOVEDIR)?;
        own_folder(&top, ".incoming")?;
        own_folder(&top, ".trash")?;
        handover.apply(own_folder(&top, FILES)?, 0o700)?;
        // The last step, because a folder without it does not count as a conversation.
        rustix::fs::symlinkat("disk/files", folder, FILES)?;
        Ok(())
    }
}

impl DiskStorage {
    /// Gives each new conversation a disk of its own of this size; existing conversations stay as they are. Makes,
    /// mounts and unmounts one as a trial. Call it before the first conversation is made.
    ///
    /// # Errors
    /// [`RootError::OwnDisks`] when this process lacks the rights or the programs.
    pub fn with_own_disks(mut self, most: &Usage) -> Result<Self, RootError> {
        let disks = OwnDisks::holding(most);
        let refused = |source: io::Error| RootError::OwnDisks { source };
        let room = self.try_disk(&disks).map_err(refused)?;
        if room.f_bavail.saturating_mul(room.f_frsize) <= most.bytes || room.f_favail <= most.entries {
            let why = "mkfs.ext4 makes them too small here: its mke2fs.conf may hold an unusual default";
            return Err(refused(io::Error::other(why)));
        }
        self.own_disks = Some(disks);
        Ok(self)
    }

    /// Makes a disk and removes it. Returns what was free on it.
    fn try_disk(&self, disks: &OwnDisks) -> io::Result<StatVfs> {
        let name = fresh_name();
        let folder = own_folder(&self.unassigned, &name)?;
        let handover = self.new_handover(&folder)?;
        let made = disks.make(&folder, &self.unassigned_path().join(&name), handover);
        let room = made.and_then(|()| Ok(rustix::fs::fstatvfs(open_own(&folder, POINT)?)?));
        discard(&self.unassigned, &name, &self.trash, &self.background)?;
        room
    }

    /// A new unassigned folder with a disk of its own.
    pub(super) fn make_with_disk(&self, disks: &OwnDisks, name: &str) -> Result<(), Errno> {
        let folder = own_folder(&self.unassigned, name)?;
        let path = self.unassigned_path().join(name);
        disks.make(&folder, &path, self.new_handover(&folder)?).map_err(|error| logged(&error, &path))
    }

    /// A conversation on its own disk, which is mounted first if necessary.
    pub(super) fn enter_disk(&self, folder: OwnedFd, path: &Path) -> Result<Folder, Errno> {
        for _ in 0..TRIES {
            let top = open_own(&folder, POINT)?;
            if !is_mounted(&folder)? {
                drop(top);
                self.mount(&folder, path)?;
                continue;
            }
            // When it was opened before the mount changed, it is the empty mount point.
            let Ok(files) = open_own(&top, FILES) else { continue };
            let (incoming, trash) = (own_folder(&top, ".incoming")?, own_folder(&top, ".trash")?);
            let folder = Folder {
                dir: Arc::new(folder),
                handover: self.handover_in(&files)?,
                files: Arc::new(files),
                incoming: Arc::new(incoming),
                trash: Arc::new(trash),
                data_dir: path.join(POINT).join(FILES),
                on_own_disk: true,
                background: self.background.clone(),
            };
            if let Err(errno) = folder.discard_unfinished() {
                debug!(%errno, "what a killed server was writing is left to the next use");
            }
            return Ok(folder);
        }
        Err(Errno::BUSY)
    }

    /// Mounts the disk in a folder unless it is mounted. Any number of threads and processes may do so at once.
    fn mount(&self, folder: &OwnedFd, path: &Path) -> Result<(), Errno> {
        let image = open_beneath(folder, IMAGE.as_bytes(), OFlags::RDONLY)?;
        rustix::fs::flock(&image, FlockOperation::LockExclusive)?;
        if is_mounted(folder)? {
            return Ok(());
        }
        if let Err(error) = check(path).and_then(|()| attach(path)) {
            // A conversation that was deleted meanwhile has another name.
            return Err(if path.exists() { logged(&error, path) } else { Errno::NOENT });
        }
        let top = open_own(folder, POINT)?;
        let trash = Arc::new(own_folder(&top, ".trash")?);
        if names(&trash)?.iter().any(|name| !name.starts_with('.')) {
            self.background.empty(&trash);
        }
        Ok(())
    }

    /// Unmounts all disks without an open file, also those of other processes on this root, which mount them again, and
    /// all that have no name any more.
    pub(super) fn unmount_all(&self) {
        if self.own_disks.is_none() {
            return;
        }
        for parent in [&self.unassigned, &self.trash] {
            for name in names(parent).unwrap_or_default() {
                if let Ok(folder) = open_own(parent, &name) {
                    lazy_unmount(&folder);
                }
            }
        }
        for last in self.last_uses().unwrap_or_default() {
            self.unmount(&last.key);
        }
    }
}

impl Folder {
    /// The folder in which a file is completed. Where it is on a disk of its own, others see from now on that it is
    /// written to, until this value is dropped.
    pub(super) fn to_write_in(&self) -> Result<&OwnedFd, Errno> {
        if self.on_own_disk {
            rustix::fs::flock(&self.incoming, FlockOperation::LockShared)?;
        }
        Ok(&self.incoming)
    }

    /// Removes what killed servers were writing on its own disk, unless one that lives writes there. A disk stays
    /// mounted when its server is killed, so this cannot wait for the next mount.
    fn discard_unfinished(&self) -> Result<(), Errno> {
        if names(&self.incoming)?.is_empty() {
            return Ok(());
        }
        let locked = rustix::fs::flock(&self.incoming, FlockOperation::NonBlockingLockExclusive);
        if ignore(&[Errno::WOULDBLOCK], locked)?.is_none() {
            return Ok(());
        }
        let discarded = discard_all(&self.incoming, &self.trash, &self.background);
        rustix::fs::flock(&self.incoming, FlockOperation::Unlock)?;
        discarded
    }

    /// Usage of its own disk; `None` when it has none.
    pub(super) fn disk_usage(&self) -> Result<Option<Usage>, Errno> {
        if !self.on_own_disk {
            return Ok(None);
        }
        let stat = rustix::fs::fstatvfs(&self.files)?;
        let blocks = stat.f_blocks.saturating_sub(stat.f_bfree).saturating_sub(BLOCKS_OURS);
        let inodes = stat.f_files.saturating_sub(stat.f_ffree).saturating_sub(INODES_OURS);
        Ok(Some(Usage { bytes: blocks.saturating_mul(stat.f_frsize), entries: inodes }))
    }
}

/// Unmounts the disk in a folder, even while it is in use. Safe for any folder: no program can mount anything below
/// ours.
pub(super) fn lazy_unmount(folder: &OwnedFd) {
    unmount_by(folder, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH);
}

/// Unmounts the disk in a folder if it is mounted and no file on it is open. Returns whether it was.
pub(super) fn unmount(folder: &OwnedFd) -> bool {
    unmount_by(folder, UnmountFlags::NOFOLLOW)
}

/// The space that the unmounted disk in a folder takes on the root's disk; `None` for one that is mounted, and where
/// there is none.
pub(super) fn unmounted_bytes(folder: &OwnedFd) -> Option<u64> {
    let image = rustix::fs::statat(folder, IMAGE, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let resting = !is_mounted(folder).ok()?;
    resting.then(|| u64::try_from(image.st_blocks).unwrap_or(0).saturating_mul(512))
}

fn unmount_by(folder: &OwnedFd, flags: UnmountFlags) -> bool {
    // By the handle, since the name may lead elsewhere by now.
    let point = format!("/proc/self/fd/{}/{POINT}", folder.as_raw_fd());
    is_mounted(folder).unwrap_or(false) && rustix::mount::unmount(point, flags).is_ok()
}

/// Whether something is mounted on the folder for the disk.
fn is_mounted(folder: &OwnedFd) -> Result<bool, Errno> {
    let point = rustix::fs::statat(folder, POINT, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT)?;
    Ok(point.st_dev != rustix::fs::fstat(folder)?.st_dev)
}

/// Repairs the image in the folder with this path after a crash of the machine. A clean image takes a few milliseconds.
fn check(path: &Path) -> io::Result<()> {
    let image = path.join(IMAGE);
    // A sandbox may still use it after the unmount here; then the same disk is mounted again.
    let in_use = command::run("losetup", ["--associated".as_ref(), image.as_os_str()], &[0], COMMAND_MAX)?;
    if in_use.is_empty() {
        command::run("e2fsck", ["-p".as_ref(), image.as_os_str()], &[0, 1], CHECK_MAX)?;
    }
    Ok(())
}

/// Mounts the image in the folder with this path.
fn attach(path: &Path) -> io::Result<()> {
    // Deleted blocks are returned to the root's disk at once; unused inode tables are never written.
    let options = "loop,nosuid,nodev,noatime,discard,noinit_itable";
    let (image, point) = (path.join(IMAGE), path.join(POINT));
    let args = ["-t".as_ref(), "ext4".as_ref(), "-o".as_ref(), options.as_ref(), image.as_os_str(), point.as_os_str()];
    command::run("mount", args, &[0], COMMAND_MAX).map(drop)
}

/// Logs an error of these programs, which has no errno.
fn logged(error: &io::Error, path: &Path) -> Errno {
    warn!(folder = %path.display(), %error, "a conversation's own disk cannot be used");
    errno_of(error)
}
