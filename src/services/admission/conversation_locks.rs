//! One turn at a time for each conversation.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::domain::owner::ConversationKey;

/// One turn at a time for each conversation. An entry lives as long as somebody holds or awaits its turn.
#[derive(Debug, Default)]
pub(super) struct ConversationLocks(Mutex<HashMap<ConversationKey, Weak<AsyncMutex<()>>>>);

/// A conversation's turn: while it lives, nothing else starts in the conversation.
#[derive(Debug)]
pub struct ConversationLock {
    guard: Option<OwnedMutexGuard<()>>,
    conversation: ConversationKey,
    turns: Arc<ConversationLocks>,
}

impl ConversationLocks {
    pub(super) async fn take(turns: &Arc<Self>, conversation: &ConversationKey) -> ConversationLock {
        let mutex = {
            let mut map = turns.0.lock().unwrap_or_else(PoisonError::into_inner);
            map.get(conversation).and_then(Weak::upgrade).unwrap_or_else(|| {
                let mutex = Arc::new(AsyncMutex::new(()));
                map.insert(conversation.clone(), Arc::downgrade(&mutex));
                mutex
            })
        };
        // Made before the wait: whoever gives up waiting tidies the map too.
        let mut turn = ConversationLock { guard: None, conversation: conversation.clone(), turns: Arc::clone(turns) };
        turn.guard = Some(mutex.lock_owned().await);
        turn
    }

    pub(super) fn take_if_idle(turns: &Arc<Self>, conversation: &ConversationKey) -> Option<ConversationLock> {
        let mut map = turns.0.lock().unwrap_or_else(PoisonError::into_inner);
        if map.get(conversation).is_some_and(|mutex| mutex.strong_count() > 0) {
            return None;
        }
        let mutex = Arc::new(AsyncMutex::new(()));
        map.insert(conversation.clone(), Arc::downgrade(&mutex));
        // Nobody else has it yet.
        let guard = mutex.try_lock_owned().ok();
        Some(ConversationLock { guard, conversation: conversation.clone(), turns: Arc::clone(turns) })
    }
}

impl Drop for ConversationLock {
    fn drop(&mut self) {
        let mut map = self.turns.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.guard.take());
        if map.get(&self.conversation).is_some_and(|mutex| mutex.strong_count() == 0) {
            map.remove(&self.conversation);
        }
    }
}

#[cfg(test)]
impl ConversationLocks {
    /// Whether an entry is left.
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().expect("the map").is_empty()
    }
}
