//! Checks whether the kernel limits what a conversation holds: by a disk of its own, or by project quotas.

use std::path::Path;

use rustix::fs::{major, minor, stat};

use super::Findings;
use crate::{
    adapters::storage::{DiskStorage, hard_limit},
    app,
    config::Config,
    ports::storage::Usage,
};

/// Gives new conversations the hard limit that a server gives them, and says which it is.
pub(super) fn limited(store: DiskStorage, config: &Config, findings: &mut Findings) -> Option<DiskStorage> {
    if config.quota.hard {
        return own_disks(store, config, findings);
    }
    let Some(most) = app::project_quota(config) else { return Some(store) };
    let store = store.with_project_quotas(&most);
    let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let kind = device(&config.root).and_then(|device| with_project_quotas(&device, &mountinfo));
    projects(&most, store.project_limit(), kind, findings);
    Some(store)
}

/// Whether conversations can have disks of their own.
fn own_disks(store: DiskStorage, config: &Config, findings: &mut Findings) -> Option<DiskStorage> {
    let made = store.with_own_disks(&app::own_disk(config)).inspect_err(|error| {
        let why = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
        let fix = "run the server as root on the engine's host and install e2fsprogs, or unset SANDBOX_QUOTA__HARD";
        findings.fail("quota", format!("no disk can be made for a conversation: {why}"), fix);
    });
    let store = made.ok()?;
    findings.ok("quota", "a disk for a conversation was made, mounted and unmounted");
    Some(store)
}

/// Says what project quotas do here. `kind` is the file system, where it is mounted with them.
fn projects(most: &Usage, limit: Option<Usage>, kind: Option<&str>, findings: &mut Findings) {
    let hard = hard_limit(most);
    let (hard_mib, hard_entries) = (hard.bytes.div_ceil(1 << 20), hard.entries);
    let default = format!(
        "run `xfs_quota -x -c 'limit -p -d bhard={hard_mib}m ihard={hard_entries}' MOUNT` with the mount point of \
         SANDBOX_ROOT, and restart the server (docs/disk.md)"
    );
    let limits = |limit: &Usage| {
        format!("project quotas limit each new conversation to {} MiB and {} files", limit.bytes >> 20, limit.entries)
    };
    match (limit, kind) {
        (Some(limit), _) if most.fits(&limit) => findings.ok("quota", limits(&limit)),
        (Some(limit), _) => {
            let why = "less than SANDBOX_QUOTA__BYTES_MAX or SANDBOX_QUOTA__ENTRIES_MAX, so programs see a full disk";
            findings.warn("quota", format!("{}, {why}", limits(&limit)), default);
        }
        (None, Some("xfs")) => {
            findings.warn("quota", "SANDBOX_ROOT has project quotas, but no default limit for projects", default);
        }
        (None, Some(_)) => findings.warn(
            "quota",
            "SANDBOX_ROOT has project quotas, but this process may not set a limit",
            "run the server on the engine's host with CAP_SYS_ADMIN, or put SANDBOX_ROOT on XFS, where you can set one \
             limit for all projects (docs/disk.md)",
        ),
        (None, None) => findings.ok("quota", "SANDBOX_ROOT has no project quotas, so quotas are only measured"),
    }
}

/// The device of a folder's file system, as `/proc/self/mountinfo` writes it.
fn device(folder: &Path) -> Option<String> {
    let device = stat(folder).ok()?.st_dev;
    Some(format!("{}:{}", major(device), minor(device)))
}

/// The kind of the file system on a device, if it is mounted with project quotas.
fn with_project_quotas<'a>(device: &str, mountinfo: &'a str) -> Option<&'a str> {
    mountinfo.lines().find_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        let (kind, options) = (system.split(' ').next()?, system.rsplit(' ').next()?);
        let is_it = mount.split(' ').nth(2) == Some(device) && options.split(',').any(|option| option == "prjquota");
        is_it.then_some(kind)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::finding::Level;

    const MOUNTS: &str = "\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,discard
31 22 254:16 / /srv rw,nosuid,nodev shared:2 - xfs /dev/vdb rw,attr2,inode64,logbufs=8,logbsize=32k,prjquota
32 22 254:17 / /mnt/prjquota rw - xfs /dev/vdc rw,attr2,inode64,noquota
33 22 254:32 / /mnt/other rw - ext4 /dev/vdd rw,prjquota";

    #[test]
    fn file_systems_with_project_quotas_are_found_by_their_device() {
        let kinds = ["254:1", "254:16", "254:17", "254:32", "254:3"].map(|device| with_project_quotas(device, MOUNTS));
        assert_eq!(kinds, [None, Some("xfs"), None, Some("ext4"), None]);
    }

    #[test]
    fn a_limit_in_effect_is_named_and_a_missing_one_has_a_fix() {
        let most = Usage { bytes: 1 << 30, entries: 50_000 };
        let told = |limit, kind| {
            let mut findings = Findings::default();
            projects(&most, limit, kind, &mut findings);
            (findings.0[0].level, findings.text())
        };
        let (level, text) = told(Some(hard_limit(&most)), Some("xfs"));
        assert!(
            level == Level::Ok && text.contains("limit each new conversation to 1051 MiB and 50064 files"),
            "{text}"
        );
        let (level, text) = told(Some(Usage { bytes: 1 << 29, ..most }), Some("xfs"));
        assert!(level == Level::Warn && text.contains("512 MiB and 50000 files, less than SANDBOX_QUOTA"), "{text}");
        let (level, text) = told(None, Some("xfs"));
        assert!(level == Level::Warn && text.contains("'limit -p -d bhard=1052m ihard=50064'"), "{text}");
        let (level, text) = told(None, Some("ext4"));
        assert!(level == Level::Warn && text.contains("CAP_SYS_ADMIN"), "{text}");
        let (level, text) = told(None, None);
        assert!(level == Level::Ok && text.contains("only measured"), "{text}");
    }
}
