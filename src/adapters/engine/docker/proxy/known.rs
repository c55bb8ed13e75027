//! What the proxy remembers between calls.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use tokio::time::Instant;

use super::ownership::Folders;
use crate::{domain::id::SandboxId, ports::engine::ImageId};

/// Containers that are remembered. The oldest is forgotten first; its next call inspects it.
pub(super) const CONTAINERS_MAX: usize = 4096;
pub(super) const RUNNERS_MAX: usize = 256;
/// How long a checked image stays allowed. An image id names its content, so the label cannot change; its names can.
pub(super) const RUNNER_AGE_MAX: Duration = Duration::from_mins(1);

#[derive(Default)]
pub(super) struct Known {
    /// Images that may be runners, and when that was checked.
    pub runners: HashMap<ImageId, Instant>,
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
    /// The first container of a name stays until it is removed, so that no later answer changes what `start` checks.
    pub(super) fn remember_container(&mut self, id: SandboxId, container: Container) {
        self.containers.entry(id).or_insert(container);
        if self.containers.len() > CONTAINERS_MAX {
            self.containers.pop_first();
        }
    }

    pub(super) fn remember_runner(&mut self, image: ImageId) {
        if self.runners.len() >= RUNNERS_MAX {
            self.runners.clear();
        }
        self.runners.insert(image, Instant::now());
    }

    pub(super) fn is_runner(&self, image: &ImageId) -> bool {
        self.runners.get(image).is_some_and(|checked| checked.elapsed() < RUNNER_AGE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_container_of_a_name_does_not_replace_the_first() {
        let (mut known, id) = (Known::default(), SandboxId::new());
        for container in ["first", "second"] {
            known.remember_container(id, Container { id: container.to_owned(), folders: Folders::default() });
        }
        assert_eq!(known.containers[&id].id, "first");
    }
}
