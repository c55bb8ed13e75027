//! Project quotas: a limit of the kernel on each conversation's files, where the file system of the root has them.
//!
//! The folder for files gets a project id when it is made. Everything below it inherits the id, also a file without a
//! name. The limit is the one that the operator set for all projects (XFS has such a default), or this server sets it
//! where it has `CAP_SYS_ADMIN` on the host (ext4, XFS). The measurement stays the verdict; this stops a program that
//! is faster.
//!
//! A folder with a project refuses entries of another one (`EXDEV`). So what was made elsewhere gets the folder's
//! project before it is moved there. Folders that were made without a project stay so.

use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use rustix::{
    fs::{AtFlags, FileType, StatVfs, StatxFlags},
    ioctl::{Getter, Opcode, Setter, ioctl, opcode},
};
use tracing::warn;
use uuid::Uuid;

use super::{
    DiskStorage, Errno, fresh_name,
    own::{assign, make_folder, own_folder},
    stat_of,
};
use crate::ports::storage::Usage;

/// `FS_XFLAG_PROJINHERIT`.
const INHERIT: u32 = 0x200;
/// The quotas of projects, beside those of users (0) and groups (1).
const PROJECTS: libc::c_int = 2;
/// Ids begin here, above those that operators choose (`/etc/projid`).
const FIRST_ID: u64 = 1 << 31;
/// Ids that are tried for one folder.
const TRIES: usize = 8;

/// `struct fsxattr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Attributes {
    flags: u32,
    _extents: [u32; 2],
    project: u32,
    _rest: [u32; 3],
}

/// The limit on new conversations.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProjectQuota {
    /// What a program may use.
    most: Usage,
    /// What a trial folder could hold.
    limit: Usage,
}

impl DiskStorage {
    /// Limits the files of each new conversation to a little more than this, where the file system has project quotas
    /// and either a limit for all projects or this process may set one. Existing conversations stay as they are.
    #[must_use]
    pub fn with_project_quotas(mut self, most: &Usage) -> Self {
        let limit = self.try_project(most).ok().flatten();
        self.projects = limit.map(|limit| ProjectQuota { most: *most, limit });
        self
    }

    /// What the kernel lets a new conversation hold; `None` where it sets no limit.
    pub fn project_limit(&self) -> Option<Usage> {
        self.projects.map(|quota| quota.limit)
    }

    fn try_project(&self, most: &Usage) -> Result<Option<Usage>, Errno> {
        let name = fresh_name();
        let folder = own_folder(&self.incoming, &name)?;
        let limit = attributes(&folder).and_then(|inherited| {
            // The whole root is of a project, within which nothing can be moved from one to another. Its limit stays.
            if inherited.project != 0 {
                return Ok(None);
            }
            // An id that no folder had: those of deleted ones may have limits that a server with more rights set.
            let limit = self.give_own_project(&folder, Uuid::new_v4().as_u64_pair().0, most);
            if let Some(trial) = project_in(&folder) {
                set_limit(&self.root, trial, &Usage::default());
            }
            limit
        });
        rustix::fs::unlinkat(&self.incoming, &name, AtFlags::REMOVEDIR)?;
        limit
    }

    /// Makes the folder for files, with a project of its own where projects are limited.
    pub(super) fn make_files(&self, conversation: &OwnedFd) -> Result<(), Errno> {
        let Some(quota) = self.projects.filter(|_| stat_of(conversation, "files", StatxFlags::TYPE).is_err()) else {
            return make_folder(conversation, "files");
        };
        // Another server uses the folder as soon as it has its name.
        let name = fresh_name();
        let folder = own_folder(&self.incoming, &name)?;
        let number = rustix::fs::fstat(&folder)?.st_ino;
        if let Err(errno) = self.give_own_project(&folder, number, &quota.most) {
            warn!(%errno, "a new conversation has no hard limit, because its folder got no project");
        }
        let placed = assign(&self.incoming, &name, conversation, "files");
        if placed != Ok(true) {
            // What remains is removed at the next start.
            let _ = rustix::fs::unlinkat(&self.incoming, &name, AtFlags::REMOVEDIR);
        }
        placed.map(drop)
    }

    /// Gives an empty folder a project that nothing else has, by a number, and returns the limit on it.
    ///
    /// The file system itself tells what else has the project: a deleted conversation whose folder had the same number
    /// and still has open files, or, where numbers have more than 31 bits, a living one.
    fn give_own_project(&self, folder: &OwnedFd, number: u64, most: &Usage) -> Result<Option<Usage>, Errno> {
        let mut own = None;
        for id in ids(number).take(TRIES) {
            set_project(folder, id)?;
            set_limit(&self.root, id, &hard_limit(most));
            let inside = rustix::fs::fstatvfs(folder)?;
            // False without a limit on the number of files: then these numbers are those of the file system.
            let is_alone = inside.f_files.saturating_sub(inside.f_ffree) <= 1;
            // The limit of an id that was used before can be one that the operator has changed since.
            if is_alone && most.fits(&size(&inside)) {
                return Ok(Some(size(&inside)));
            }
            own = own.or(is_alone.then_some(id));
        }
        // Of the others, the first one is the least likely to be another folder's.
        set_project(folder, own.or_else(|| ids(number).next()).ok_or(Errno::INVAL)?)?;
        let (inside, whole) = (rustix::fs::fstatvfs(folder)?, rustix::fs::fstatvfs(&self.root)?);
        Ok((inside.f_blocks < whole.f_blocks).then(|| size(&inside)))
    }
}

/// Gives what this server made the project of the folder that it will be moved to.
pub(super) fn share_project(made: impl AsFd, folder: impl AsFd) -> Result<(), Errno> {
    project_in(folder).map_or(Ok(()), |project| set_project(made, project))
}

/// The project of what is made in a folder; `None` where the folder has none, or its file system knows none.
pub(super) fn project_in(folder: impl AsFd) -> Option<u32> {
    attributes(folder).ok().filter(|of| of.flags & INHERIT != 0).map(|of| of.project)
}

/// The hard limit: as with a disk of its own, the measurement usually notices first that a program passes the quota.
pub fn hard_limit(most: &Usage) -> Usage {
    let bytes = most.bytes.saturating_add(most.bytes / 40).saturating_add(2 << 20);
    Usage { bytes, entries: most.entries.saturating_add(64) }
}

/// The ids to try for a folder with this inode number. Of numbers up to 31 bits the first one is unique.
fn ids(number: u64) -> impl Iterator<Item = u32> {
    // An odd constant with bits everywhere, so that folders whose first ids are the same differ in the next.
    let mixed = std::iter::successors(Some(number), |number| Some(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    let folded = mixed.map(|mixed| FIRST_ID | ((mixed ^ (mixed >> 31)) & (FIRST_ID - 1)));
    // The last one means "none".
    folded.filter_map(|id| u32::try_from(id).ok()).filter(|id| *id != u32::MAX)
}

fn size(inside: &StatVfs) -> Usage {
    Usage { bytes: inside.f_blocks.saturating_mul(inside.f_frsize), entries: inside.f_files }
}

fn attributes(handle: impl AsFd) -> Result<Attributes, Errno> {
    const GET: Opcode = opcode::read::<Attributes>(b'X', 31);
    #[expect(unsafe_code, reason = "the call fills exactly this struct, of which every content is valid")]
    let read = unsafe { ioctl(handle, Getter::<GET, Attributes>::new()) };
    read
}

/// Gives a file or a folder a project. What is made in the folder from now on has it too.
fn set_project(handle: impl AsFd, project: u32) -> Result<(), Errno> {
    const SET: Opcode = opcode::write::<Attributes>(b'X', 32);
    let mut attributes = Attributes { project, ..attributes(&handle)? };
    if FileType::from_raw_mode(rustix::fs::fstat(&handle)?.st_mode).is_dir() {
        attributes.flags |= INHERIT;
    }
    #[expect(unsafe_code, reason = "the call reads exactly this struct")]
    let written = unsafe { ioctl(handle, Setter::<SET, Attributes>::new(attributes)) };
    written
}

/// Limits a project, or ends its limit by zeros, where this process may. Elsewhere what the operator set holds, which
/// `give_own_project` reads.
fn set_limit(root: &OwnedFd, project: u32, hard: &Usage) {
    let limits = libc::dqblk {
        // In KiB.
        dqb_bhardlimit: hard.bytes.div_ceil(1024),
        dqb_bsoftlimit: 0,
        dqb_curspace: 0,
        dqb_ihardlimit: hard.entries,
        dqb_isoftlimit: 0,
        dqb_curinodes: 0,
        dqb_btime: 0,
        dqb_itime: 0,
        dqb_valid: libc::QIF_LIMITS,
    };
    let command = libc::QCMD(libc::Q_SETQUOTA, PROJECTS);
    // Since Linux 5.14.
    #[expect(unsafe_code, reason = "the call reads exactly this struct, which outlives it")]
    let _ = unsafe { libc::syscall(libc::SYS_quotactl_fd, root.as_raw_fd(), command, project, &raw const limits) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_for_usual_numbers_and_differ_for_others() {
        let first = |number| ids(number).next().expect("an id");
        for number in [0, 1, 77, (1 << 31) - 2] {
            assert_eq!(u64::from(first(number)), FIRST_ID + number);
        }
        let (one, other) = (5 << 31 | 3, 3 << 31 | 5);
        assert_eq!(first(one), first(other), "their first ids meet");
        let rest = |number| ids(number).skip(1).take(TRIES).collect::<Vec<_>>();
        assert!(rest(one).iter().all(|id| !rest(other).contains(id)));
        assert!(ids((1 << 31) - 1).take(TRIES).all(|id| id != u32::MAX && u64::from(id) >= FIRST_ID));
    }
}
