//! Reports which files clients change, to readers that follow some. Changes by programs are in the events of their
//! runs.
//!
//! Changes go through a ring of fixed size: a disk operation never waits for a reader, and a reader that the ring
//! overtakes learns that it missed some.

use tokio::sync::broadcast::{Receiver, Sender};

use super::Files;
use crate::domain::{owner::ConversationKey, path::SafePath};

/// How many changes a reader may be behind before it misses some.
const BEHIND_MAX: usize = 1024;

/// What has changed in a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    pub conversation: ConversationKey,
    /// A file, or a folder with all in it; `None` for all files.
    pub path: Option<SafePath>,
}

impl Changed {
    /// Whether this file is among what has changed.
    pub fn covers(&self, conversation: &ConversationKey, file: &SafePath) -> bool {
        *conversation == self.conversation && self.path.as_ref().is_none_or(|path| file.is_within(path))
    }
}

/// Where changes are announced.
pub(super) struct Changes(Sender<Changed>);

impl Default for Changes {
    fn default() -> Self {
        Self(Sender::new(BEHIND_MAX))
    }
}

/// Announces what a step changes in one conversation. It belongs into the step, which ends also when its caller goes
/// away.
#[derive(Clone)]
pub(super) struct Announcer {
    changes: Sender<Changed>,
    conversation: ConversationKey,
}

impl Announcer {
    /// A file, or a folder with all in it; `None` for all files.
    pub(super) fn changed(&self, path: Option<&SafePath>) {
        if self.changes.receiver_count() > 0 {
            // An error means only that the last reader has gone.
            drop(self.changes.send(Changed { conversation: self.conversation.clone(), path: path.cloned() }));
        }
    }
}

impl Files {
    /// What clients change from now on, in all conversations of all owners.
    pub fn changes(&self) -> Receiver<Changed> {
        self.changes.0.subscribe()
    }

    pub(super) fn announcer(&self, conversation: &ConversationKey) -> Announcer {
        Announcer { changes: self.changes.0.clone(), conversation: conversation.clone() }
    }
}
