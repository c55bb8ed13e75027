//! Reports which files clients change, to readers that follow some. Changes by programs are in the events of their
//! runs.
//!
//! Changes go through the rings of their owners: a disk operation never waits for a reader, and a reader that is too
//! slow learns that it missed some.

use std::sync::Arc;

use tokio::sync::broadcast::Receiver;

use super::Files;
use crate::{
    domain::{
        owner::{ConversationKey, Principal},
        path::SafePath,
    },
    services::shares::Rings,
};

/// How many changes a reader may be behind before it misses some.
pub(super) const BEHIND_MAX: usize = 1024;

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

/// Announces what a step changes in one conversation. It belongs into the step, which ends also when its caller goes
/// away.
#[derive(Clone)]
pub(super) struct Announcer {
    changes: Arc<Rings<Changed>>,
    conversation: ConversationKey,
}

impl Announcer {
    /// A file, or a folder with all in it; `None` for all files.
    pub(super) fn changed(&self, path: Option<&SafePath>) {
        let changed = || Changed { conversation: self.conversation.clone(), path: path.cloned() };
        self.changes.send(&self.conversation.owner, changed);
    }
}

impl Files {
    /// What clients change from now on, in all conversations of an owner.
    pub fn changes(&self, who: &Principal) -> Receiver<Changed> {
        self.changes.subscribe(who)
    }

    pub(super) fn announcer(&self, conversation: &ConversationKey) -> Announcer {
        Announcer { changes: Arc::clone(&self.changes), conversation: conversation.clone() }
    }
}
