//! What each conversation has in the gate: how many of its runs were admitted, and the lock that lets one run at a
//! time.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::domain::owner::ConversationKey;

/// The conversations with an admitted run or a held lock.
#[derive(Debug, Default)]
pub(super) struct Conversations(Mutex<HashMap<ConversationKey, Conversation>>);

#[derive(Debug, Default)]
struct Conversation {
    admitted: usize,
    lock: Arc<AsyncMutex<()>>,
}

/// One admitted run of a conversation.
#[derive(Debug)]
pub(super) struct Admitted {
    key: ConversationKey,
    all: Arc<Conversations>,
}

/// While it lives, nothing else starts in the conversation.
#[derive(Debug)]
pub struct ConversationLock {
    guard: Option<OwnedMutexGuard<()>>,
    key: ConversationKey,
    all: Arc<Conversations>,
}

impl Conversations {
    /// Admits a run, unless `max` runs of the conversation are admitted.
    pub(super) fn admit(all: &Arc<Self>, key: &ConversationKey, max: usize) -> Option<Admitted> {
        let mut map = all.0.lock();
        let conversation = map.entry(key.clone()).or_default();
        if conversation.admitted >= max {
            drop(map);
            return None;
        }
        conversation.admitted += 1;
        Some(Admitted { key: key.clone(), all: Arc::clone(all) })
    }

    /// The lock, when no one holds or awaits it.
    pub(super) fn lock_if_idle(all: &Arc<Self>, key: &ConversationKey) -> Option<ConversationLock> {
        let mut map = all.0.lock();
        let lock = &map.entry(key.clone()).or_default().lock;
        // The map's own is the only reference.
        let guard = if Arc::strong_count(lock) == 1 { Arc::clone(lock).try_lock_owned().ok()? } else { return None };
        drop(map);
        Some(ConversationLock { guard: Some(guard), key: key.clone(), all: Arc::clone(all) })
    }

    /// Changes a conversation and removes it when nothing of it is left.
    fn leave(&self, key: &ConversationKey, change: impl FnOnce(&mut Conversation)) {
        let mut map = self.0.lock();
        let Some(conversation) = map.get_mut(key) else { return };
        change(conversation);
        if conversation.admitted == 0 && Arc::strong_count(&conversation.lock) == 1 {
            map.remove(key);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

impl Admitted {
    /// Waits until no other run of the conversation holds the lock.
    pub(super) async fn lock(&self) -> ConversationLock {
        let lock = Arc::clone(&self.all.0.lock().entry(self.key.clone()).or_default().lock);
        let guard = lock.lock_owned().await;
        ConversationLock { guard: Some(guard), key: self.key.clone(), all: Arc::clone(&self.all) }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.all.leave(&self.key, |conversation| conversation.admitted -= 1);
    }
}

impl Drop for ConversationLock {
    fn drop(&mut self) {
        let guard = self.guard.take();
        self.all.leave(&self.key, |_| drop(guard));
    }
}
