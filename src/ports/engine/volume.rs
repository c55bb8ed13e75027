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
    /// The folder as the engine's nodes see it: below the volume of a claim.
    Shared {
        claim: String,
        /// Where this process has the volume's root.
        mount: PathBuf,
    },
    /// One of its own.
    Streamed { bytes: u64 },
}

impl Volumes {
    /// A folder that is not below the root of the shared volume stays what it is, and engines refuse it.
    pub fn volume(&self, folder: PathBuf) -> Volume {
        let (claim, mount) = match self {
            Self::HostFolders => return Volume::HostFolder(folder),
            Self::Shared { claim, mount } => (claim.clone(), mount),
            Self::Streamed { bytes } => return Volume::Streamed { bytes: *bytes },
        };
        let is_plain = |path: &&Path| path.components().all(|part| matches!(part, Component::Normal(_)));
        let below = folder.strip_prefix(mount).ok().filter(is_plain).and_then(Path::to_str);
        // An empty sub-path would be the whole volume.
        match below.filter(|path| !path.is_empty()).map(str::to_owned) {
            Some(sub_path) => Volume::Claim { claim, sub_path },
            None => Volume::HostFolder(folder),
        }
    }

    /// What a sandbox has room for, where files travel.
    pub fn streamed_bytes(&self) -> Option<u64> {
        if let Self::Streamed { bytes } = self { Some(*bytes) } else { None }
    }
}
