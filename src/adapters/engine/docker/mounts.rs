//! Our paths as the engine's host sees them, and the file that Podman reads there.
//!
//! The engine mounts folders of its own host. When this process runs in a container itself, what it calls
//! `/var/sandboxes` has another path there, which is found in that container's own mounts.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use bollard::{Docker, models::MountPoint};
use uuid::Uuid;

use super::{ConnectError, call, convert};

/// The seccomp profile, in the root. Names of conversations do not begin with a dot.
const SECCOMP_FILE: &str = ".seccomp.json";

/// Translates our paths into those of the engine's host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostPaths {
    /// Each of our folders, with its path there.
    folders: Vec<(PathBuf, PathBuf)>,
}

impl HostPaths {
    /// Uses the setting of each folder, or else the mounts of our own container.
    pub(super) async fn find(
        docker: &Docker,
        wanted: Vec<(PathBuf, Option<PathBuf>)>,
        limit: Duration,
    ) -> Result<Self, ConnectError> {
        // Asked once: `engine-proxy` refuses it and logs that.
        let is_asked = wanted.iter().any(|(_, set)| set.is_none());
        let own = if is_asked { own_mounts(docker, limit).await } else { None };
        let mut folders = Vec::new();
        for (root, set) in wanted {
            let host_root = match (set, &own) {
                (Some(path), _) => path,
                (None, Some(mounts)) => {
                    on_host(&root, mounts).ok_or_else(|| ConnectError::RootNotMounted { root: root.clone() })?
                }
                (None, None) => root.clone(),
            };
            tracing::debug!(root = %root.display(), host_root = %host_root.display(), "a folder for mounts");
            folders.push((root, host_root));
        }
        Ok(Self { folders })
    }

    /// The path on the engine's host; `None` when it is not below one of our folders.
    pub(super) fn to_host(&self, path: &Path) -> Option<PathBuf> {
        self.folders.iter().find_map(|(root, host_root)| Some(below(host_root, path.strip_prefix(root).ok()?)))
    }

    /// Writes the seccomp profile beside the data folders, where only the server writes, over that of any earlier
    /// version. The path of it on the engine's host.
    pub(super) fn write_seccomp(&self, root: &Path) -> Result<String, ConnectError> {
        let path = root.join(SECCOMP_FILE);
        let failed = |source| ConnectError::SeccompFile { path: path.clone(), source };
        // Atomically, since another server of the same root may be starting a sandbox.
        let whole = root.join(format!("{SECCOMP_FILE}.{}", Uuid::now_v7().simple()));
        fs::write(&whole, convert::seccomp()).and_then(|()| fs::rename(&whole, &path)).map_err(failed)?;
        Ok(self.to_host(&path).unwrap_or(path).to_string_lossy().into_owned())
    }
}

/// The mounts of the container that this process runs in; `None` when this engine knows no such container.
async fn own_mounts(docker: &Docker, limit: Duration) -> Option<Vec<MountPoint>> {
    let id = own_container()?;
    match call::within("inspect", limit, docker.inspect_container(&id, None)).await {
        Ok(container) => Some(container.mounts.unwrap_or_default()),
        Err(error) => {
            tracing::debug!(%error, "no container of this engine; paths are used as they are");
            None
        }
    }
}

/// The name of the container that this process appears to run in.
fn own_container() -> Option<String> {
    let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    container_of(&mountinfo).or_else(|| {
        let in_container = Path::new("/.dockerenv").exists() || Path::new("/run/.containerenv").exists();
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
        in_container.then(|| name.trim().to_owned())
    })
}

/// Finds the container in `/proc/self/mountinfo`: engines mount three small files of a folder that has its name.
fn container_of(mountinfo: &str) -> Option<String> {
    mountinfo.lines().find_map(|line| {
        // id, parent, major:minor, root, mount point, …
        let mut fields = line.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        if !matches!(point, "/etc/hostname" | "/etc/resolv.conf" | "/etc/hosts") {
            return None;
        }
        let id = root.rsplit('/').nth(1)?;
        (id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit())).then(|| id.to_owned())
    })
}

/// `path` on the host, by the mount that covers it most closely.
fn on_host(path: &Path, mounts: &[MountPoint]) -> Option<PathBuf> {
    mounts
        .iter()
        .filter_map(|mount| {
            let rest = path.strip_prefix(mount.destination.as_deref()?).ok()?;
            let source = mount.source.as_deref().filter(|source| source.starts_with('/'))?;
            Some((rest.components().count(), below(Path::new(source), rest)))
        })
        .min_by_key(|(rest, _)| *rest)
        .map(|(_, host)| host)
}

/// Joins; joining nothing would leave a slash at the end.
fn below(folder: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { folder.to_owned() } else { folder.join(rest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(source: &str, destination: &str) -> MountPoint {
        MountPoint {
            source: Some(source.to_owned()),
            destination: Some(destination.to_owned()),
            ..MountPoint::default()
        }
    }

    #[test]
    fn on_host_uses_the_closest_mount() {
        let mounts = [mount("/srv", "/var"), mount("/data/boxes", "/var/sandboxes"), mount("/x", "/var/sandboxesque")];
        let host = |path: &str| on_host(Path::new(path), &mounts);
        assert_eq!(host("/var/sandboxes"), Some("/data/boxes".into()));
        assert_eq!(host("/var/sandboxes/a/files"), Some("/data/boxes/a/files".into()));
        assert_eq!(host("/var/lib"), Some("/srv/lib".into()));
        assert_eq!(host("/home"), None);
    }

    #[test]
    fn on_host_ignores_a_volume_without_a_path() {
        assert_eq!(on_host(Path::new("/v"), &[mount("name", "/v")]), None);
    }

    #[test]
    fn container_of_finds_only_our_own_container() {
        let id = "a".repeat(64);
        let ours =
            format!("700 600 8:1 /var/lib/docker/containers/{id}/hostname /etc/hostname rw - ext4 /dev/sda1 rw\n");
        assert_eq!(container_of(&ours), Some(id.clone()));
        let hosts = format!("70 60 0:5 / /var/lib/docker/containers/{id}/mounts/shm rw - tmpfs shm rw\n");
        assert_eq!(container_of(&hosts), None);
        assert_eq!(container_of("1 2 0:1 / /etc/hostname rw - tmpfs tmpfs rw\n"), None);
        assert_eq!(container_of(""), None);
    }

    #[test]
    fn to_host_translates_only_paths_below_our_folders() {
        let pair = |ours: &str, there: &str| (ours.into(), there.into());
        let paths = HostPaths { folders: vec![pair("/var/sandboxes", "/data/boxes"), pair("/skills", "/srv/skills")] };
        assert_eq!(paths.to_host(Path::new("/skills/public")), Some("/srv/skills/public".into()));
        assert_eq!(paths.to_host(Path::new("/var/sandboxes/a/files")), Some("/data/boxes/a/files".into()));
        assert_eq!(paths.to_host(Path::new("/etc")), None);
    }
}
