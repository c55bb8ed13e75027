//! The right to write, and uploads in progress. The bytes of these are outside the conversations' folders, where no
//! measurement finds them, so they are reserved as they arrive: concurrent uploads cannot exceed the quotas together.
//! Placing the file turns its reservation into usage; an upload that ends otherwise releases it.

use std::{collections::HashMap, mem, sync::Arc};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use super::{Quota, QuotaOptions, known::Conversation};
use crate::{
    domain::{Code, ConversationKey, DiskLimit, Failure, Principal},
    ports::storage::{StorageError, Usage},
};

/// The right to write to a conversation. Writers take turns, so the bytes of one reservation are on disk before the
/// next measurement.
#[derive(Debug)]
pub(in crate::services) struct Writer {
    quota: Arc<Quota>,
    conversation: ConversationKey,
    _turn: OwnedMutexGuard<()>,
}

/// What has arrived for each conversation.
#[derive(Debug, Default)]
pub(super) struct ArrivingBytes(HashMap<ConversationKey, Usage>);

impl ArrivingBytes {
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
        *there = there.minus(held);
        if *there == Usage::default() {
            self.0.remove(id);
        }
    }
}

/// The reservation of one upload. Dropping it releases what it holds.
#[derive(Debug)]
pub(in crate::services) struct UploadReservation {
    quota: Arc<Quota>,
    conversation: ConversationKey,
    held: Usage,
    /// The bytes are on the conversation's own disk, so its usage includes them.
    is_counted: bool,
    /// The server may not read a folder of the conversation.
    is_closed: bool,
}

impl Drop for UploadReservation {
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
    /// Waits for the other writers of this conversation.
    pub(in crate::services) async fn writer(self: &Arc<Self>, conversation: &ConversationKey) -> Writer {
        let lock = self.writing.of(conversation, AsyncMutex::default);
        let (quota, conversation) = (Arc::clone(self), conversation.clone());
        Writer { quota, conversation, _turn: lock.lock_owned().await }
    }

    /// The reservation of an upload that begins; `is_counted` as in `IncomingFile`.
    pub(in crate::services) fn arrival(
        self: &Arc<Self>,
        conversation: &ConversationKey,
        is_counted: bool,
    ) -> UploadReservation {
        let (quota, conversation) = (Arc::clone(self), conversation.clone());
        UploadReservation { quota, conversation, held: Usage::default(), is_counted, is_closed: false }
    }

    /// Checks the owner's quota. Before a refusal, what may have shrunk is measured again. Blocks.
    fn check_owner(&self, id: &ConversationKey, more: &Usage) -> Result<(), Failure> {
        let stale: Vec<_> = {
            let known = self.known.lock();
            if self.owner_has_room(&known, id, more) {
                return Ok(());
            }
            let is_stale = |(key, one): &(&ConversationKey, &Conversation)| {
                key.owner == id.owner && one.found_bytes > 0 && one.usage.is_none()
            };
            known.conversations.iter().filter(is_stale).map(|(key, _)| key.clone()).collect()
        };
        for id in &stale {
            match self.measure(id) {
                Ok(usage) => self.known.lock().set(id, usage),
                // What the server may not read counts as it was last found.
                Err(StorageError::Denied { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.check_owner_room(&self.known.lock(), id, more)
    }

    /// What uploads in progress hold beside the usage of a conversation.
    pub(in crate::services) fn arriving_bytes(&self, id: &ConversationKey) -> u64 {
        self.known.lock().arrivals.of(id).bytes
    }
}

impl Writer {
    /// Reserves `more`, which is about to be written, or refuses. Measures unless the cached usage shows that it fits.
    /// Blocks.
    ///
    /// # Errors
    /// [`Code::QuotaExceeded`], [`Code::NoSpace`] when the disk has too little free space.
    pub(in crate::services) fn reserve(&self, more: &Usage) -> Result<(), Failure> {
        let there = self.check_room(more)?;
        let mut known = self.quota.known.lock();
        // Writers of the owner's other conversations may have reserved meanwhile.
        self.quota.check_owner_room(&known, &self.conversation, more)?;
        known.set_written(&self.conversation, there, more);
        Ok(())
    }

    /// The usage beside which `more` fits; `None` where the server may not read a folder, and `more` fits beside what
    /// the conversation is assumed to take.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub(in crate::services) fn check_room(&self, more: &Usage) -> Result<Option<Usage>, Failure> {
        let Self { quota, conversation, .. } = self;
        quota.disk_has_room(more)?;
        if let Some(there) = quota.known_room(conversation, more) {
            return Ok(Some(there));
        }
        let there = match quota.measure(conversation) {
            // Only a program can open such a folder, so that alone is no reason to refuse one.
            Err(StorageError::Denied { .. }) => None,
            measured => Some(measured?),
        };
        let taken = {
            let known = quota.known.lock();
            there.unwrap_or_else(|| known.closed_usage(conversation)).plus(&known.arrivals.of(conversation))
        };
        quota.check_room(&taken, more)?;
        if let Some(there) = there {
            quota.known.lock().set(conversation, there);
        }
        quota.check_owner(conversation, more)?;
        Ok(there)
    }

    /// Whether a file of this usage can be in the conversation at all. Reads no folder.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub(in crate::services) fn check(&self, file: &Usage) -> Result<(), Failure> {
        let nothing = Usage::default();
        self.quota.disk_has_room(&nothing)?;
        self.quota.check_room(&nothing, file)
    }

    /// The limit that a refusal with this code means: of bytes and entries, and of the owner's bytes, the one that is
    /// nearest.
    pub(in crate::services) fn limit(&self, refusal: Code) -> DiskLimit {
        let QuotaOptions { bytes_max, entries_max, free_bytes_min, owner_bytes_max } = self.quota.options;
        if refusal == Code::NoSpace {
            return DiskLimit::Free { min: free_bytes_min };
        }
        let Usage { bytes, entries } = self.quota.measure(&self.conversation).unwrap_or_default();
        let total = self.quota.known.lock().owner_bytes(&self.conversation.owner);
        if let Some(max) = owner_bytes_max.filter(|max| max.saturating_sub(total) < bytes_max.saturating_sub(bytes)) {
            return DiskLimit::Owner { max };
        }
        let is_nearer = u128::from(entries) * u128::from(bytes_max) > u128::from(bytes) * u128::from(entries_max);
        if is_nearer { DiskLimit::Entries { max: entries_max } } else { DiskLimit::Bytes { max: bytes_max } }
    }

    /// Reserves `whole`, of which the upload may hold a part already, or refuses. Blocks.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub(in crate::services) fn admit(&self, arrival: &mut UploadReservation, whole: &Usage) -> Result<(), Failure> {
        let Self { quota, conversation, .. } = self;
        let more = whole.minus(&arrival.held);
        if arrival.is_counted {
            self.reserve(&more)?;
        } else {
            if arrival.is_closed {
                // It is not measured again for each piece.
                quota.disk_has_room(&more)?;
            } else {
                arrival.is_closed = self.check_room(&more)?.is_none();
            }
            let mut known = quota.known.lock();
            // Uploads to the owner's other conversations may have reserved meanwhile.
            quota.check_room(&known.arrivals.of(conversation), &more)?;
            quota.check_owner_room(&known, conversation, &more)?;
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
    pub(in crate::services) fn settle(&self, arrival: &mut UploadReservation) -> Result<(), Failure> {
        let there = self.check_room(&Usage::default())?;
        if !arrival.is_counted {
            let (mut known, held) = (self.quota.known.lock(), mem::take(&mut arrival.held));
            known.arrivals.remove(&self.conversation, &held);
            known.set_written(&self.conversation, there, &held);
        } else if there.is_some() {
            arrival.held = Usage::default();
        }
        Ok(())
    }
}
