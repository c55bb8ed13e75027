//! When the conversations that clients hold for a time were last used. Bounded by what is watched: a use of another
//! conversation is not noted.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::domain::owner::ConversationKey;

/// The last uses, in unix seconds. Programs count too: their files are looked at before and after them.
#[derive(Default)]
pub(in crate::services) struct Uses(Mutex<HashMap<ConversationKey, i64>>);

impl Uses {
    pub(in crate::services) fn watch(&self, conversation: &ConversationKey) {
        self.0.lock().entry(conversation.clone()).or_default();
    }

    pub(in crate::services) fn forget(&self, conversation: &ConversationKey) {
        self.0.lock().remove(conversation);
    }

    /// `None` for a conversation that is not watched.
    pub(in crate::services) fn last(&self, conversation: &ConversationKey) -> Option<i64> {
        self.0.lock().get(conversation).copied()
    }

    pub(super) fn note(&self, conversation: &ConversationKey, now_unix_s: i64) {
        if let Some(last) = self.0.lock().get_mut(conversation) {
            *last = now_unix_s;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::owner::Principal;

    #[test]
    fn only_what_is_watched_is_noted() {
        let uses = Uses::default();
        let [watched, other] =
            ["a", "b"].map(|id| ConversationKey::new(Principal::default(), id.parse().expect("an id")));
        uses.watch(&watched);
        for conversation in [&watched, &other] {
            uses.note(conversation, 5);
        }
        assert_eq!((uses.last(&watched), uses.last(&other)), (Some(5), None));
        uses.watch(&watched);
        assert_eq!(uses.last(&watched), Some(5), "watched again, it keeps its last use");
        uses.forget(&watched);
        assert_eq!(uses.last(&watched), None);
    }
}
