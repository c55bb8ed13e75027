//! What a sandbox can have as `/data`, and which of it a data folder of this process becomes.

use std::path::{Component, Path, PathBuf};

/// What a sandbox has as `/data`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Volume {
    /// A folder of this host, as this process sees it. It exists.
    HostFolder(PathBuf),
    /// A folder of a volume that the engine's nodes and this process share. It exists.
    Claim {
        claim: String,
        /// The folder below the volume's root, without a slash before or after it.
        sub_path: String,
    },
    /// An empty folder of the sandbox's own that ends with it. Files travel as frames.
    Streamed {
        /// What it may hold.
        bytes: u64,
    },
}

/// Which volume a sandbox gets for a data folder of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Volumes {
    /// The folder.
    HostFolders,
    /// The folder as the engine's nodes see it.
    Shared(SharedVolume),
    /// One of its own.
    Streamed { bytes: u64 },
}

impl Volumes {
    pub fn volume(&self, folder: PathBuf) -> Volume {
        match self {
            Self::HostFolders => Volume::HostFolder(folder),
            Self::Shared(shared) => shared.volume(folder),
            Self::Streamed { bytes } => Volume::Streamed { bytes: *bytes },
        }
    }

    /// What a sandbox has room for, where files travel.
    pub fn streamed_bytes(&self) -> Option<u64> {
        if let Self::Streamed { bytes } = self { Some(*bytes) } else { None }
    }
}

/// A shared volume, as [`Volume::Claim`] names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedVolume {
    pub claim: String,
    /// Where this process has its root.
    pub mount: PathBuf,
}

impl SharedVolume {
    /// A folder of this process as a folder of the volume; one that is not below its root stays what it is, and engines
    /// refuse it.
    pub fn volume(&self, folder: PathBuf) -> Volume {
        let below = folder.strip_prefix(&self.mount).ok();
        let is_plain = |path: &&Path| path.components().all(|part| matches!(part, Component::Normal(_)));
        match below.filter(is_plain).and_then(Path::to_str) {
            // An empty sub-path would be the whole volume.
            Some(sub_path) if !sub_path.is_empty() => {
                Volume::Claim { claim: self.claim.clone(), sub_path: sub_path.to_owned() }
            }
            _ => Volume::HostFolder(folder),
        }
    }
}
