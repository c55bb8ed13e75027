//! How Podman differs from Docker, whose interface it speaks. What it does not support is in `docs/operations.md`.
//!
//! It reads the seccomp profile from a file of its host (until its pull request 29726), where Docker takes the text. So
//! the profile is written beside the data folders, where only the server writes. It has no limit on the inodes of a
//! tmpfs, and its compatible interface has no update of a container.

use std::{fs, path::Path};

use bollard::models::SystemVersion;
use uuid::Uuid;

use super::{ConnectError, convert, mounts::HostPaths};
use crate::ports::engine::EngineError;

/// The profile, in the root. Names of conversations do not begin with a dot.
const FILE: &str = ".seccomp.json";
/// The name of Podman among its components.
pub(super) const COMPONENT: &str = "Podman Engine";

/// The differences of its containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Podman {
    /// The path of the seccomp profile on the engine's host.
    pub seccomp: String,
}

pub(super) fn is_it(version: &SystemVersion) -> bool {
    version.components.iter().flatten().any(|part| part.name == COMPONENT)
}

/// Why the limits of a sandbox cannot be changed.
pub(super) fn no_update() -> EngineError {
    EngineError::refused("limit", "Podman's interface has no update of a container")
}

impl Podman {
    /// Overwrites the profile of any earlier version.
    pub(super) fn prepare(root: &Path, mounts: &HostPaths) -> Result<Self, ConnectError> {
        let path = root.join(FILE);
        let failed = |source| ConnectError::SeccompFile { path: path.clone(), source };
        // Atomically, since another server of the same root may be starting a sandbox.
        let whole = root.join(format!("{FILE}.{}", Uuid::now_v7().simple()));
        fs::write(&whole, convert::seccomp()).and_then(|()| fs::rename(&whole, &path)).map_err(failed)?;
        let seen = mounts.to_host(&path).unwrap_or_else(|| path.clone());
        Ok(Self { seccomp: seen.to_string_lossy().into_owned() })
    }
}
