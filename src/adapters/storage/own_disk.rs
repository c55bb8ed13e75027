//! A file system of its own for each conversation: an image of a fixed size, mounted, that nothing overfills. Files without
//! a name fill it too, and what it holds is known without a walk.
//!
//! ```text
//! {root}/{id}/disk.ext4          the image; sparse, so that it takes no more than what is in it
//! {root}/{id}/disk/              where it is mounted
//! {root}/{id}/disk/.incoming/    like those of the root: a file is moved into place within one mount
//! {root}/{id}/disk/.trash/
//! {root}/{id}/disk/files/        `/data` of the conversation's programs
//! {root}/{id}/files              a link to it, for people
//! ```
//!
//! A conversation's folder tells itself which kind it is. A disk is mounted by whoever enters it and unmounted when it was
//! not used for long; a mount belongs to the machine and not to this process, so one that was killed leaves nothing to
//! repair. A mounted disk moves with the folder that it is in, also below a sandbox that has it.

use std::{
    ffi::OsStr,
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, PoisonError},
};

use rustix::{
    fs::{AtFlags, Dir, FlockOperation, Mode, OFlags},
    io::Errno,
    mount::UnmountFlags,
};
use tracing::{debug, warn};

use super::{
    Conversation, Handover, Store, StoreError, Usage, fresh_name,
    root::{RootError, clear_incoming, folder, open_own, own_folder},
};
use crate::domain::owner::ConversationKey;

const IMAGE: &str = "disk.ext4";
const POINT: &str = "disk";
const FILES: &str = "files";
/// Where the programs are that make, check and mount file systems.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
const BLOCK_BYTES: u64 = 4096;
/// Of one inode, in bytes: with room for times in nanoseconds, by which changed files are told.
const INODE_BYTES: u64 = 256;
/// Inodes in use on an empty disk: ten of ext4's, and our three folders.
const INODES_OURS: u64 = 13;
/// Blocks in use on an empty disk: the top folder and our three.
const BLOCKS_OURS: u64 = 4;
/// Somebody else may unmount a disk between a look at it and its opening; nobody does so time after time.
const TRIES: usize = 8;

/// How large new disks are.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnDisks {
    image_bytes: u64,
    inodes: u64,
}

impl OwnDisks {
    /// So large that a little more fits than is allowed: who watches a program sees it pass the ceiling, and the disk ends
    /// what nobody was quick enough to see.
    fn holding(most: &Usage) -> Self {
        let inodes = most.entries.saturating_add(INODES_OURS + 64);
        let held = most.bytes.saturating_add(inodes.saturating_mul(INODE_BYTES));
        // Bitmaps, descriptors of groups and what ext4 keeps back (2 %, at most 4096 blocks).
        let image_bytes = held.saturating_add(held / 40).saturating_add(2 << 20).next_multiple_of(BLOCK_BYTES);
        Self { image_bytes, inodes }
    }

    /// Makes a disk in an empty folder of ours, and mounts it.
    fn make(&self, folder: &OwnedFd, path: &Path, handover: Handover) -> io::Result<()> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let image = rustix::fs::openat(folder, IMAGE, flags, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::ftruncate(&image, self.image_bytes)?;
        drop(image);
        let inodes = self.inodes.to_string();
        let options = ["-q", "-F", "-b", "4096", "-I", "256", "-m", "0", "-N", &inodes];
        // No journal: a disk that was cut off is checked before it is mounted again. Nothing is written ahead of need.
        let features = ["-O", "^has_journal,^resize_inode", "-E", "root_owner=0:0,lazy_itable_init=1,nodiscard"];
        let words = options.into_iter().chain(features).map(OsStr::new);
        run("mkfs.ext4", words.chain([path.join(IMAGE).as_os_str()]), &[0])?;
        own_folder(folder, POINT)?;
        attach(path)?;
        let top = open_own(folder, POINT)?;
        rustix::fs::unlinkat(&top, "lost+found", AtFlags::REMOVEDIR)?;
        own_folder(&top, ".incoming")?;
        own_folder(&top, ".trash")?;
        handover.apply(own_folder(&top, FILES)?, 0o700)?;
        // The last step: a folder without it is no conversation's.
        rustix::fs::symlinkat("disk/files", folder, FILES)?;
        Ok(())
    }
}

impl Store {
    /// Gives each new conversation a disk of its own that holds no more than that; those that are there stay what they are.
    /// Makes, mounts and unmounts one to see that it can be done. To be called before the first conversation is made.
    ///
    /// # Errors
    /// [`RootError::OwnDisks`] where this process may not, or what it takes is not installed.
    pub fn with_own_disks(mut self, most: &Usage) -> Result<Self, StoreError> {
        let disks = OwnDisks::holding(most);
        let refused = |source: io::Error| RootError::OwnDisks { source };
        let name = fresh_name();
        let folder = own_folder(&self.unassigned, &name).map_err(|errno| refused(errno.into()))?;
        let made = disks.make(&folder, &self.unassigned_path().join(&name), self.handover);
        let room = made.and_then(|()| Ok(rustix::fs::fstatvfs(open_own(&folder, POINT)?)?));
        lazy_unmount(&folder);
        // What remains is an image without a mount, which the trash takes care of.
        rustix::fs::renameat(&self.unassigned, &name, &self.trash, &name).map_err(|errno| refused(errno.into()))?;
        let room = room.map_err(refused)?;
        if room.f_bavail.saturating_mul(room.f_frsize) <= most.bytes || room.f_favail <= most.entries {
            let why = "mkfs.ext4 makes them too small here: its mke2fs.conf may hold an unusual default";
            return Err(refused(io::Error::other(why)).into());
        }
        self.own_disks = Some(disks);
        Ok(self)
    }

    /// A new folder with a disk of its own, that nobody has yet.
    pub(super) fn make_with_disk(&self, disks: &OwnDisks, name: &str) -> Result<(), Errno> {
        let folder = own_folder(&self.unassigned, name)?;
        let path = self.unassigned_path().join(name);
        disks.make(&folder, &path, self.handover).map_err(|error| told(&error, &path))
    }

    /// Takes a folder away that nobody has, with its disk: its name now, the rest behind everybody's back.
    pub(super) fn discard(self: &Arc<Self>, name: &str) {
        if rustix::fs::renameat(&self.unassigned, name, &self.trash, name).is_err() {
            debug!("an unassigned folder is left to the next start");
            return;
        }
        let (store, name) = (Arc::clone(self), name.to_owned());
        // Unmounting takes milliseconds and writes to the disk.
        std::thread::spawn(move || store.purge_now(&name));
    }

    /// A conversation on its own disk, which is mounted where it is not.
    pub(super) fn enter_disk(&self, folder: OwnedFd, path: &Path) -> Result<Conversation, Errno> {
        for _ in 0..TRIES {
            let top = open_own(&folder, POINT)?;
            if !is_mounted(&folder)? {
                drop(top);
                self.mount(&folder, path)?;
                continue;
            }
            // Opened before it was unmounted or mounted it is an empty folder, and the wrong one.
            let Ok(files) = open_own(&top, FILES) else { continue };
            let (incoming, trash) = (own_folder(&top, ".incoming")?, own_folder(&top, ".trash")?);
            return Ok(Conversation {
                dir: folder,
                files,
                incoming,
                trash,
                data_dir: path.join(POINT).join(FILES),
                handover: self.handover,
                own_disk: Some(Arc::clone(&self.unfinished)),
            });
        }
        Err(Errno::BUSY)
    }

    /// Mounts the disk in a folder where it is not mounted. Any number of threads and processes may do so at once.
    fn mount(&self, folder: &OwnedFd, path: &Path) -> Result<(), Errno> {
        let image =
            rustix::fs::openat(folder, IMAGE, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        rustix::fs::flock(&image, FlockOperation::LockExclusive)?;
        if is_mounted(folder)? {
            return Ok(());
        }
        if let Err(error) = check(path).and_then(|()| attach(path)) {
            // Deleted meanwhile it has another name.
            return Err(if path.exists() { told(&error, path) } else { Errno::NOENT });
        }
        let top = open_own(folder, POINT)?;
        clear_incoming(&own_folder(&top, ".incoming")?)?;
        let trash = own_folder(&top, ".trash")?;
        if Dir::read_from(&trash)?.any(|entry| entry.is_ok_and(|entry| !entry.file_name().to_bytes().starts_with(b".")))
        {
            self.unfinished.lock().unwrap_or_else(PoisonError::into_inner).push(trash);
        }
        Ok(())
    }

    /// What an unmounted disk takes of the root's; `None` for one that is mounted and for a conversation without one.
    pub fn resting_bytes(&self, id: &ConversationKey) -> Option<u64> {
        let folder = open_own(&self.root, &folder(id)).ok()?;
        let image = rustix::fs::statat(&folder, IMAGE, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let resting = !is_mounted(&folder).ok()?;
        resting.then(|| u64::try_from(image.st_blocks).unwrap_or(0).saturating_mul(512))
    }

    /// Unmounts a conversation's disk, where it has one that is mounted and nobody has a file of it open. Whoever enters
    /// next mounts it again. Whether it was.
    pub fn unmount(&self, id: &ConversationKey) -> bool {
        open_own(&self.root, &folder(id)).is_ok_and(|folder| unmount(&folder, UnmountFlags::NOFOLLOW))
    }

    /// Unmounts all disks that nobody has a file of open, also those of other processes on this root, which mount them
    /// again, and all that nobody can enter any more. The number of conversations that had one.
    pub fn unmount_all(&self) -> usize {
        for (parent, name) in
            [&self.unassigned, &self.trash].into_iter().flat_map(|parent| names(parent).map(move |name| (parent, name)))
        {
            if let Ok(folder) = open_own(parent, &name) {
                lazy_unmount(&folder);
            }
        }
        self.last_uses().unwrap_or_default().iter().filter(|last| self.unmount(&last.key)).count()
    }
}

fn names(folder: &OwnedFd) -> impl Iterator<Item = String> + use<> {
    let entries = Dir::read_from(folder).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str().ok().map(str::to_owned))
}

impl Conversation {
    /// What is on the disk of its own; `None` where it has none.
    pub(super) fn disk_usage(&self) -> Result<Option<Usage>, Errno> {
        if self.own_disk.is_none() {
            return Ok(None);
        }
        let stat = rustix::fs::fstatvfs(&self.files)?;
        let blocks = stat.f_blocks.saturating_sub(stat.f_bfree).saturating_sub(BLOCKS_OURS);
        let inodes = stat.f_files.saturating_sub(stat.f_ffree).saturating_sub(INODES_OURS);
        Ok(Some(Usage { bytes: blocks.saturating_mul(stat.f_frsize), entries: inodes }))
    }
}

/// Unmounts the disk in a folder, whoever is in it. Right for any folder: no program can mount anything below ours.
pub(super) fn lazy_unmount(folder: &OwnedFd) {
    unmount(folder, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH);
}

fn unmount(folder: &OwnedFd, flags: UnmountFlags) -> bool {
    // By the handle: what the folder is called may lead elsewhere by now.
    let point = format!("/proc/self/fd/{}/{POINT}", folder.as_raw_fd());
    is_mounted(folder).unwrap_or(false) && rustix::mount::unmount(point, flags).is_ok()
}

/// Whether something is mounted on the folder for the disk.
fn is_mounted(folder: &OwnedFd) -> Result<bool, Errno> {
    let point = rustix::fs::statat(folder, POINT, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT)?;
    Ok(point.st_dev != rustix::fs::fstat(folder)?.st_dev)
}

/// Repairs the image in the folder with this path where the machine's end cut it off. One that is whole takes a few
/// milliseconds.
fn check(path: &Path) -> io::Result<()> {
    let image = path.join(IMAGE);
    // A sandbox may still have it when it is unmounted here; then it is the same disk that is mounted again.
    let in_use = run("losetup", ["--associated".as_ref(), image.as_os_str()], &[0])?;
    if in_use.is_empty() {
        run("e2fsck", ["-p".as_ref(), image.as_os_str()], &[0, 1])?;
    }
    Ok(())
}

/// Mounts the image in the folder with this path.
fn attach(path: &Path) -> io::Result<()> {
    // What is deleted is given back to the root's disk at once; unused tables of inodes are never written.
    let options = "loop,nosuid,nodev,noatime,discard,noinit_itable";
    let (image, point) = (path.join(IMAGE), path.join(POINT));
    run(
        "mount",
        ["-t".as_ref(), "ext4".as_ref(), "-o".as_ref(), options.as_ref(), image.as_os_str(), point.as_os_str()],
        &[0],
    )
    .map(drop)
}

/// What one of the system's programs prints, run without our environment and what is secret in it.
fn run<'a>(program: &str, args: impl IntoIterator<Item = &'a OsStr>, good: &[i32]) -> io::Result<Vec<u8>> {
    let mut command = Command::new(program);
    command.args(args).env_clear().env("PATH", PATH).env("LC_ALL", "C").stdin(Stdio::null());
    let output = command.output().map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))?;
    if output.status.code().is_some_and(|code| good.contains(&code)) {
        return Ok(output.stdout);
    }
    let words = if output.stderr.is_empty() { &output.stdout } else { &output.stderr };
    let why = String::from_utf8_lossy(words).split_whitespace().collect::<Vec<_>>().join(" ");
    Err(io::Error::other(format!("{program}: {} ({})", why.chars().take(300).collect::<String>(), output.status)))
}

/// Logs what the system said, for which there is no number.
fn told(error: &io::Error, path: &Path) -> Errno {
    warn!(folder = %path.display(), %error, "a conversation's own disk cannot be used");
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
