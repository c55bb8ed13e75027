//! What the proxy remembers between calls. Pure.

use std::collections::{BTreeMap, HashSet};

use super::ownership::Folders;
use crate::{domain::id::SandboxId, ports::engine::ImageId};

/// Containers that are remembered. The oldest is forgotten first; its next call inspects it.
pub(super) const CONTAINERS_MAX: usize = 4096;
pub(super) const RUNNERS_MAX: usize = 256;

#[derive(Default)]
pub(super) struct Known {
    /// Images with the runner label. An image id names its content, so the label cannot change.
    pub runners: HashSet<ImageId>,
    /// The containers that the engine created for this proxy.
    pub containers: BTreeMap<SandboxId, Container>,
}

/// A sandbox's container: the engine's own id of it and its folders, which belong together.
#[derive(Debug, Clone)]
pub(super) struct Container {
    pub id: String,
    pub folders: Folders,
}

impl Known {
    pub(super) fn remember_container(&mut self, id: SandboxId, container: Container) {
        self.containers.insert(id, container);
        if self.containers.len() > CONTAINERS_MAX {
            self.containers.pop_first();
        }
    }

    pub(super) fn remember_runner(&mut self, image: ImageId) {
        if self.runners.len() >= RUNNERS_MAX {
            self.runners.clear();
        }
        self.runners.insert(image);
    }
}
