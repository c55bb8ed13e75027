//! Lists and deletes conversations. One is deleted only while no run is under way or waits in it, and none starts in it
//! until it is gone, so both are operations of the runs.

use tracing::{debug, info};

use super::runs::Runs;
use crate::domain::{Code, ConversationId, ConversationKey, Failure, Principal};
pub use crate::ports::storage::LastUse;
use crate::ports::storage::Storage;

/// A page of conversations.
#[derive(Debug, Clone)]
pub struct ConversationPage {
    /// Ordered by id, each with the bytes that it takes where they are cached.
    pub conversations: Vec<(LastUse, Option<u64>)>,
    /// Where the next page begins, when there is more.
    pub after: Option<ConversationId>,
}

impl Runs {
    /// The conversations after `after`, ordered by id.
    ///
    /// # Errors
    /// [`Code::Internal`] when the disk fails.
    pub async fn conversations(
        &self,
        who: &Principal,
        after: Option<ConversationId>,
        limit: usize,
    ) -> Result<ConversationPage, Failure> {
        debug!(who = who.name(), "list conversations");
        // One more than requested shows whether there is another page.
        let (owner, files) = (who.clone(), &self.parts().files);
        let step = move |store: &dyn Storage| Ok(store.list(&owner, after.as_ref(), limit.saturating_add(1))?);
        let mut conversations = files.owner_step(who, step).await?;
        let after = super::cut(&mut conversations, limit, |last| last.key.id.clone());
        let quota = files.quota();
        let sized = |last: LastUse| {
            let bytes = quota.cached(&last.key).map(|usage| usage.bytes);
            (last, bytes)
        };
        let conversations = conversations.into_iter().map(sized).collect();
        Ok(ConversationPage { conversations, after })
    }

    /// Deletes a conversation with all its files.
    ///
    /// # Errors
    /// [`Code::ConversationNotFound`], [`Code::HeldElsewhere`]; [`Code::ConversationBusy`] while a run is under way or
    /// waits in it.
    pub async fn remove_conversation(&self, conversation: &ConversationKey) -> Result<(), Failure> {
        self.peers().check(conversation)?;
        let Some(lock) = self.lock_if_idle(conversation) else {
            let why = "A run is in progress or waits in this conversation: cancel it or wait for its end, then delete.";
            return Err(Failure::new(Code::ConversationBusy, why));
        };
        let removed = self.parts().files.remove(conversation).await;
        if removed.is_ok() {
            self.sessions().forget(conversation).await;
        }
        drop(lock);
        if removed? {
            info!(%conversation, "a conversation was deleted");
            return Ok(());
        }
        Err(Failure::new(
            Code::ConversationNotFound,
            "There is no such conversation: it never existed, or it was deleted.",
        ))
    }
}
