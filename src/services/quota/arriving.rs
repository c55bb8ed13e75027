//! Uploads in progress. Their bytes are outside the conversations' folders, where no measurement finds them, so they
//! are reserved as they arrive: concurrent uploads cannot exceed the quotas together. Placing the file turns its
//! reservation into usage; an upload that ends otherwise releases it.

use std::{collections::HashMap, mem, sync::Arc};

use super::{Known, Quota, Writer};
use crate::{
    domain::{
        error::Failure,
        owner::{ConversationKey, Principal},
    },
    ports::storage::Usage,
};

/// What has arrived for each conversation.
#[derive(Debug, Default)]
pub(super) struct Arrivals(HashMap<ConversationKey, Usage>);

impl Arrivals {
    pub(super) fn of(&self, id: &ConversationKey) -> Usage {
        self.0.get(id).copied().unwrap_or_default()
    }

    pub(super) fn owner_bytes(&self, owner: &Principal) -> u64 {
        let of_owner = self.0.iter().filter(|(id, _)| id.owner == *owner);
        of_owner.fold(0_u64, |total, (_, usage)| total.saturating_add(usage.bytes))
    }

    fn add(&mut self, id: &ConversationKey, more: &Usage) {
        let there = self.0.entry(id.clone()).or_default();
        *there = there.plus(more);
    }

    fn remove(&mut self, id: &ConversationKey, held: &Usage) {
        let Some(there) = self.0.get_mut(id) else { return };
        *there = there.less(held);
        if *there == Usage::default() {
            self.0.remove(id);
        }
    }
}

/// The reservation of one upload. Dropping it releases what it holds.
#[derive(Debug)]
pub(in crate::services) struct Arrival {
    quota: Arc<Quota>,
    conversation: ConversationKey,
    held: Usage,
    /// The bytes are on the conversation's own disk, so its usage includes them.
    is_counted: bool,
    /// The server may not read a folder of the conversation.
    is_closed: bool,
}

impl Drop for Arrival {
    fn drop(&mut self) {
        if self.held == Usage::default() {
            return;
        }
        if self.is_counted {
            self.quota.measured(&self.conversation, None);
        } else {
            self.quota.known.lock().arrivals.remove(&self.conversation, &self.held);
        }
    }
}

impl Quota {
    /// The reservation of an upload that begins; `is_counted` as in `IncomingFile`.
    pub(in crate::services) fn arrival(self: &Arc<Self>, conversation: &ConversationKey, is_counted: bool) -> Arrival {
        let (quota, conversation) = (Arc::clone(self), conversation.clone());
        Arrival { quota, conversation, held: Usage::default(), is_counted, is_closed: false }
    }

    /// What uploads in progress hold beside the usage of a conversation.
    pub(in crate::services) fn arriving_bytes(&self, id: &ConversationKey) -> u64 {
        self.known.lock().arrivals.of(id).bytes
    }

    fn check_arrivals(&self, known: &Known, id: &ConversationKey, more: &Usage) -> Result<(), Failure> {
        let arrived = known.arrivals.of(id);
        let after = arrived.plus(more);
        if !after.fits(&self.ceiling()) {
            return Err(self.refusal(&arrived, &after));
        }
        if self.owner_has_room(known, id, more) { Ok(()) } else { Err(self.owner_refusal(known, id)) }
    }
}

impl Writer {
    /// Reserves `whole`, of which the upload may hold a part already, or refuses. Blocks.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub(in crate::services) fn admit(&self, arrival: &mut Arrival, whole: &Usage) -> Result<(), Failure> {
        let Self { quota, conversation, .. } = self;
        let more = whole.less(&arrival.held);
        if arrival.is_counted {
            self.reserve(&more)?;
        } else {
            if arrival.is_closed {
                // It is not measured again for each piece.
                quota.disk_has_room(&more)?;
            } else {
                arrival.is_closed = self.room(&more)?.is_none();
            }
            let mut known = quota.known.lock();
            // Uploads to the owner's other conversations may have reserved meanwhile.
            quota.check_arrivals(&known, conversation, &more)?;
            known.arrivals.add(conversation, &more);
        }
        arrival.held = *whole;
        Ok(())
    }

    /// Turns the reservation of an upload, whose file is about to be placed, into usage, or refuses if the conversation
    /// grew too much meanwhile. Blocks.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub(in crate::services) fn settle(&self, arrival: &mut Arrival) -> Result<(), Failure> {
        let Some(there) = self.room(&Usage::default())? else { return Ok(()) };
        let held = mem::take(&mut arrival.held);
        if !arrival.is_counted {
            let mut known = self.quota.known.lock();
            known.arrivals.remove(&self.conversation, &held);
            known.set(&self.conversation, there.plus(&held));
        }
        Ok(())
    }
}
