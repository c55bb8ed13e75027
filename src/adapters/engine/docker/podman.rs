//! What Podman takes otherwise than Docker, whose interface it speaks. What it does not do at all is in `docs/operations.md`.
//!
//! It opens the list of system calls as a file of its own host (until its pull request 29726), where Docker takes the list itself.
//! So the list is written beside the data folders, where only the server writes. It has no limit on the names in a file system
//! in memory.

use std::{fs, path::Path};

use bollard::models::SystemVersion;
use uuid::Uuid;

use super::{ConnectError, convert, mounts::HostPaths};

/// The list, in the root. Conversations' names do not begin with a dot.
const FILE: &str = ".seccomp.json";
/// How Podman names itself among its parts.
pub(super) const COMPONENT: &str = "Podman Engine";

/// How a container is described to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Podman {
    /// The list of system calls, by its path on the engine's host.
    pub seccomp: String,
}

pub(super) fn is_it(version: &SystemVersion) -> bool {
    version.components.iter().flatten().any(|part| part.name == COMPONENT)
}

impl Podman {
    /// Writes the list anew: it is this version's, whatever an earlier one left.
    pub(super) fn prepare(root: &Path, mounts: &HostPaths) -> Result<Self, ConnectError> {
        let path = root.join(FILE);
        let failed = |source| ConnectError::SeccompFile { path: path.clone(), source };
        // In one step: another server of the same root may be starting a sandbox just now.
        let whole = root.join(format!("{FILE}.{}", Uuid::now_v7().simple()));
        fs::write(&whole, convert::seccomp()).and_then(|()| fs::rename(&whole, &path)).map_err(failed)?;
        let seen = mounts.to_host(&path).unwrap_or_else(|| path.clone());
        Ok(Self { seccomp: seen.to_string_lossy().into_owned() })
    }
}
