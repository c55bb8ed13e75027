//! Who may start when: slots, one run at a time in a conversation, a bounded queue in front of both, and a rate.
//!
//! A [`Ticket`] is a place in the house (running or waiting), a [`Permit`] is the right to start. Both are values: they
//! are given back by being dropped. Nothing here knows what is run.
//!
//! **Fair between conversations.** A run first waits for its conversation's turn and only then for a slot, and slots are
//! given in the order in which they were asked for. So of each conversation at most one run stands before the slots, its
//! next one joins behind everybody who waits there, and conversations take turns however many runs each has brought. No
//! conversation may bring more than its share of the places, so none can fill the house alone.

mod conversation_locks;
mod line;
mod rate;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

pub use self::{conversation_locks::ConversationLock, line::Position};
use self::{
    conversation_locks::ConversationLocks,
    line::{InLine, Line},
    rate::Rate,
};
use crate::domain::{
    error::{Code, Failure},
    owner::{ConversationKey, Principal},
};

/// How much may go on at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionOptions {
    /// Programs that run at once; at least one.
    pub slots: usize,
    /// Runs that wait for a slot.
    pub queue_max: usize,
    /// How long one waits.
    pub wait_max: Duration,
    /// Runs of one conversation that run or wait; at least one.
    pub conversation_max: usize,
    /// Runs that one token may begin in a minute on average; 0 is as many as it likes.
    pub rate_a_minute: u32,
    /// Runs that one token may begin at once before the rate is felt; at least one.
    pub rate_burst: u32,
}

/// Slots for a machine where nobody says how many: two for each core, since programs wait as well as compute, and no
/// more than three quarters of the memory hold when each takes all that it may.
pub fn slots_for(cpus: u32, memory_bytes: u64, run_memory_bytes: u64) -> usize {
    let by_memory = memory_bytes / 4 * 3 / run_memory_bytes.max(1);
    (cpus as usize * 2).min(usize::try_from(by_memory).unwrap_or(usize::MAX)).max(1)
}

/// The gate.
#[derive(Debug)]
pub struct Admission {
    line: Arc<Line>,
    places: Arc<Semaphore>,
    slots: Arc<Semaphore>,
    turns: Arc<ConversationLocks>,
    shares: Arc<Shares>,
    rate: Option<Rate>,
    options: AdmissionOptions,
}

/// How full the house is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadStats {
    /// Programs that may run at once.
    pub slots: usize,
    /// Slots that are taken.
    pub taken: usize,
    /// Runs that wait for a turn or a slot.
    pub waiting: usize,
}

/// How many places each conversation has.
#[derive(Debug, Default)]
struct Shares(Mutex<HashMap<ConversationKey, usize>>);

/// One place of a conversation's share.
#[derive(Debug)]
struct Share {
    conversation: ConversationKey,
    shares: Arc<Shares>,
}

/// A place in the house.
#[derive(Debug)]
pub struct Ticket {
    waits: InLine,
    share: Share,
    place: OwnedSemaphorePermit,
    slots: Arc<Semaphore>,
    turns: Arc<ConversationLocks>,
    wait_max: Duration,
}

/// The right to start one program in one conversation.
#[derive(Debug)]
pub struct Permit {
    // Dropped in this order: the slot and the turn are free before the place is.
    _slot: OwnedSemaphorePermit,
    _turn: ConversationLock,
    _share: Share,
    _place: OwnedSemaphorePermit,
}

impl Admission {
    /// A gate with all its slots free.
    pub fn new(options: AdmissionOptions) -> Self {
        let slots = options.slots.max(1);
        Self {
            line: Arc::default(),
            places: Arc::new(Semaphore::new(slots + options.queue_max)),
            slots: Arc::new(Semaphore::new(slots)),
            turns: Arc::default(),
            shares: Arc::default(),
            rate: Rate::new(options.rate_a_minute, options.rate_burst),
            options,
        }
    }

    /// Whether a run would be refused now whatever it is, for doors that want to say so before they read it. Takes no
    /// place: who sends slowly would hold it meanwhile. [`Self::enter`] decides.
    ///
    /// # Errors
    /// [`Code::QueueFull`], [`Code::RateLimited`].
    pub fn check_capacity(&self, who: &Principal) -> Result<(), Failure> {
        if self.places.available_permits() == 0 {
            return Err(full());
        }
        self.rate.as_ref().map_or(Ok(()), |rate| rate.check_capacity(who))
    }

    /// A place for a run of this conversation, at once or not at all.
    ///
    /// # Errors
    /// [`Code::QueueFull`], [`Code::RateLimited`]; nothing was touched.
    pub fn enter(&self, conversation: &ConversationKey) -> Result<Ticket, Failure> {
        let who = &conversation.owner;
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| full())?;
        let share = Shares::take(&self.shares, conversation, self.options.conversation_max.max(1))?;
        // Last: what is refused for another reason does not count.
        self.rate.as_ref().map_or(Ok(()), |rate| rate.take(who))?;
        Ok(Ticket {
            waits: Line::join(&self.line),
            share,
            place,
            slots: Arc::clone(&self.slots),
            turns: Arc::clone(&self.turns),
            wait_max: self.options.wait_max,
        })
    }

    /// The conversation's turn, when nobody holds or awaits it.
    pub fn lock_if_idle(&self, conversation: &ConversationKey) -> Option<ConversationLock> {
        ConversationLocks::take_if_idle(&self.turns, conversation)
    }

    /// How full the house is now.
    pub fn crowd(&self) -> LoadStats {
        let slots = self.options.slots.max(1);
        let taken = slots.saturating_sub(self.slots.available_permits());
        LoadStats { slots, taken, waiting: self.line.len() }
    }

    /// Slots nobody holds, for tests and readiness.
    pub fn free_slots(&self) -> usize {
        self.slots.available_permits()
    }

    /// Places nobody has.
    pub fn free_places(&self) -> usize {
        self.places.available_permits()
    }
}

fn full() -> Failure {
    Failure::new(Code::QueueFull, "Too many programs are waiting to run: try again in a few seconds.")
}

impl Shares {
    fn take(shares: &Arc<Self>, conversation: &ConversationKey, max: usize) -> Result<Share, Failure> {
        let mut map = shares.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = map.entry(conversation.clone()).or_insert(0);
        if *count >= max {
            let why = format!(
                "{max} programs of this conversation are running or waiting: let one end before you send the next, or \
                 use another conversation."
            );
            return Err(Failure::new(Code::QueueFull, why));
        }
        *count += 1;
        Ok(Share { conversation: conversation.clone(), shares: Arc::clone(shares) })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut map = self.shares.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = map.get_mut(&self.conversation) {
            *count -= 1;
            if *count == 0 {
                map.remove(&self.conversation);
            }
        }
    }
}

impl Ticket {
    /// Tells how far this one has come, now and later.
    pub fn position(&self) -> Position {
        self.waits.position()
    }

    /// Waits for the conversation's turn, then for a slot: a conversation that waits for itself holds no slot.
    ///
    /// # Errors
    /// [`Code::QueueTimeout`] when it takes too long.
    pub async fn turn(self) -> Result<Permit, Failure> {
        let Self { waits, share, place, slots, turns, wait_max } = self;
        let both = async {
            let turn = ConversationLocks::take(&turns, &share.conversation).await;
            // The semaphore is never closed, so the error cannot happen; it is mapped all the same.
            let slot =
                slots.acquire_owned().await.map_err(|_| Failure::new(Code::ShuttingDown, "The server is stopping."))?;
            drop(waits);
            Ok(Permit { _slot: slot, _turn: turn, _share: share, _place: place })
        };
        timeout(wait_max, both).await.unwrap_or_else(|_| {
            Err(Failure::new(
                Code::QueueTimeout,
                format!(
                    "The program waited {} s for its turn and was not started: try again later, and run one program \
                     at a time in a conversation.",
                    wait_max.as_secs()
                ),
            ))
        })
    }
}

#[cfg(test)]
mod tests;
