//! One standby as the service keeps it. Dropping it ends its watcher and posts its sandbox to the janitor.

use std::sync::Arc;

use tokio::{sync::oneshot, time::Instant};

use crate::{
    domain::{id::Language, owner::ConversationKey},
    ports::{
        engine::ImageId,
        storage::{FolderId, UnassignedFolder},
    },
    services::{janitor::Lease, started::Started},
};

/// How far a standby is. Later is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// The engine is at work on it.
    Starting,
    /// It can take a program.
    Ready,
    /// It has loaded everything it loads.
    Warm,
}

impl Stage {
    /// The word in metrics and on `/readyz`.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Warm => "warm",
        }
    }
}

/// For whom it stands by.
pub(super) enum For {
    /// For a conversation that does not exist yet.
    Nobody(Box<dyn UnassignedFolder>),
    /// For this one.
    Known {
        /// Which.
        conversation: ConversationKey,
        /// The folder that is its `/data`.
        folder: FolderId,
    },
}

/// One standby.
pub(super) struct Entry {
    /// Shared with the watcher until the sandbox is there: one that is under way cannot be found and destroyed yet.
    pub lease: Arc<Lease>,
    pub image: ImageId,
    pub language: Language,
    pub whose: For,
    pub stage: Stage,
    pub since: Instant,
    pub memory_bytes: Option<u64>,
    /// Asks the watcher for the sandbox.
    pub hand: oneshot::Sender<oneshot::Sender<Started>>,
}

impl Entry {
    pub(super) fn is_assigned(&self) -> bool {
        matches!(&self.whose, For::Nobody(folder) if folder.is_assigned())
    }
}
