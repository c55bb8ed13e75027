//! Admission of runs: slots, one run at a time in a conversation, a bounded queue in front of both, and a rate.
//!
//! A [`Ticket`] is an admitted run (running or waiting), a [`Permit`] is the right to start. Both are returned by being
//! dropped. Nothing here knows what a run does.
//!
//! **In order within a conversation.** An admitted run stands in line for the lock of its conversation from then on,
//! whenever its task is first polled, so a client that has an answer to one request knows that the next one runs later.
//!
//! **Fair between conversations.** A run first waits for the lock of its conversation and only then for a slot, and
//! slots are assigned in order of request. So at most one run of each conversation waits for a slot, its next one
//! queues behind all others, and conversations alternate however many runs each has. A conversation has a maximum of
//! runs, so none can fill the queue alone.
//!
//! **Fair between owners** in the same way: of each owner one run at a time waits for a slot. What the requests of the
//! admitted runs keep in memory is bounded, for all and for each owner.

mod owners;

use std::{fmt, sync::Arc, time::Duration};

use futures_util::{
    FutureExt,
    future::{BoxFuture, ready},
};
use tokio::{
    sync::{Mutex as AsyncMutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore},
    task::unconstrained,
    time::timeout,
};

pub use self::owners::QueuePosition;
use self::owners::{Owners, Queue, QueueEntry, Rate, Share};
use crate::{
    domain::{Code, ConversationKey, Failure, Principal},
    ports::observer::LoadStats,
    services::shares::{HeldMemory, SharedMemory, Shares, WeakMap},
};

/// The limits of admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionOptions {
    /// Programs that run at once; at least one.
    pub slots: usize,
    /// Runs that wait for a slot.
    pub queue_max: usize,
    /// How long a run waits for a slot.
    pub wait_max: Duration,
    /// Runs of one conversation that run or wait; at least one.
    pub conversation_max: usize,
    /// What their requests may hold in memory together, in bytes; one owner has half of it.
    pub bytes_max: usize,
    /// Runs that one owner may begin in a minute on average, by all tokens together; 0: no limit.
    pub rate_a_minute: u32,
    /// Runs that one owner may begin at once before the rate applies; at least one.
    pub rate_burst: u32,
}

/// The default number of slots: two for each core, since programs wait as well as compute, and no more than fit in
/// three quarters of the memory when each uses its limit.
pub fn slots_for(cpus: u32, memory_bytes: u64, run_memory_bytes: u64) -> usize {
    let by_memory = memory_bytes / 4 * 3 / run_memory_bytes.max(1);
    (cpus as usize * 2).min(usize::try_from(by_memory).unwrap_or(usize::MAX)).max(1)
}

/// While it lives, nothing else starts in the conversation.
pub type ConversationLock = OwnedMutexGuard<()>;

#[derive(Debug)]
pub struct Admission {
    queue: Arc<Queue>,
    capacity: Arc<Semaphore>,
    slots: Arc<Semaphore>,
    conversations: Shares<ConversationKey>,
    locks: WeakMap<ConversationKey, AsyncMutex<()>>,
    owners: Owners,
    memory: SharedMemory<Principal>,
    rate: Option<Rate>,
    options: AdmissionOptions,
}

/// An admitted run: it runs or waits.
pub struct Ticket {
    entry: QueueEntry,
    held: HeldCapacity,
    /// It is in line for this lock, or has it.
    lock: BoxFuture<'static, ConversationLock>,
    slots: Arc<Semaphore>,
    wait_max: Duration,
}

/// The right to start one program in one conversation.
#[derive(Debug)]
pub struct Permit {
    // Dropped in this order: the slot and the conversation are free before the capacity is.
    slot: OwnedSemaphorePermit,
    _lock: ConversationLock,
    _held: HeldCapacity,
}

/// What an admitted run holds from its conversation, its owner and all, whether it waits or runs.
#[derive(Debug)]
struct HeldCapacity {
    _of_conversation: OwnedSemaphorePermit,
    of_owner: Share,
    _memory: HeldMemory,
    _of_all: OwnedSemaphorePermit,
}

impl Admission {
    pub fn new(options: AdmissionOptions) -> Self {
        let slots = options.slots.max(1);
        Self {
            queue: Arc::default(),
            capacity: Arc::new(Semaphore::new(slots + options.queue_max)),
            slots: Arc::new(Semaphore::new(slots)),
            conversations: Shares::new(options.conversation_max.clamp(1, Semaphore::MAX_PERMITS)),
            locks: WeakMap::default(),
            owners: Owners::new(slots + options.queue_max),
            memory: SharedMemory::new(options.bytes_max),
            rate: Rate::new(options.rate_a_minute, options.rate_burst),
            options,
        }
    }

    /// Whether any run would be refused now, to be called before a body is read. Takes no capacity, since a slow sender
    /// would hold it meanwhile. [`Self::enter`] decides.
    ///
    /// # Errors
    /// [`Code::QueueFull`], [`Code::RateLimited`].
    pub fn check_capacity(&self, who: &Principal) -> Result<(), Failure> {
        if self.capacity.available_permits() == 0 {
            return Err(full());
        }
        self.rate.as_ref().map_or(Ok(()), |rate| rate.check_capacity(who))
    }

    /// Capacity for a run of this conversation whose request holds this many bytes, at once or not at all. `count`
    /// counts the run elsewhere, once there is room.
    ///
    /// # Errors
    /// [`Code::QueueFull`], [`Code::RateLimited`], those of `count`; nothing was touched.
    pub fn enter<T>(
        &self,
        conversation: &ConversationKey,
        bytes: usize,
        count: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<(Ticket, T), Failure> {
        let who = &conversation.owner;
        let of_all = Arc::clone(&self.capacity).try_acquire_owned().map_err(|_| full())?;
        let of_owner = self.owners.take(who).ok_or_else(full)?;
        let of_conversation = self.conversations.of(conversation).try_acquire_owned().map_err(|_| {
            let why = format!(
                "{} programs of this conversation are running or waiting: let one end before you send the next, or \
                 use another conversation.",
                self.conversations.permits
            );
            Failure::new(Code::QueueFull, why)
        })?;
        let memory = self.memory.take(who, bytes).ok_or_else(|| {
            let why = "The programs that wait or run hold too much input: try again in a few seconds, or send less.";
            Failure::new(Code::QueueFull, why)
        })?;
        let counted = count()?;
        // Last: a run that is refused for another reason does not count.
        self.rate.as_ref().map_or(Ok(()), |rate| rate.take(who))?;
        let ticket = Ticket {
            entry: Queue::join(&self.queue, who),
            held: HeldCapacity { _of_conversation: of_conversation, of_owner, _memory: memory, _of_all: of_all },
            lock: in_line(self.locks.of(conversation, AsyncMutex::default)),
            slots: Arc::clone(&self.slots),
            wait_max: self.options.wait_max,
        };
        Ok((ticket, counted))
    }

    /// The conversation's lock, when no run holds or awaits it.
    pub fn lock_if_idle(&self, conversation: &ConversationKey) -> Option<ConversationLock> {
        // Its holder passes it on to the first run that awaits it, so it is not free in between.
        self.locks.of(conversation, AsyncMutex::default).try_lock_owned().ok()
    }

    /// The same, once no run holds it and those that await it now had their turn.
    pub async fn lock(&self, conversation: &ConversationKey) -> ConversationLock {
        self.locks.of(conversation, AsyncMutex::default).lock_owned().await
    }

    pub fn load(&self) -> LoadStats {
        let slots = self.options.slots.max(1);
        let slots_taken = slots.saturating_sub(self.slots.available_permits());
        let (owners, owner_runs_max) = self.owners.load();
        LoadStats { slots, slots_taken, waiting: self.queue.len(), owners, owner_runs_max }
    }
}

/// Waits for a lock, in line from now on. It is queued by the first poll, for which no budget of the task counts.
fn in_line(lock: Arc<AsyncMutex<()>>) -> BoxFuture<'static, ConversationLock> {
    let mut lock = unconstrained(lock.lock_owned()).boxed();
    match (&mut lock).now_or_never() {
        Some(held) => ready(held).boxed(),
        None => lock,
    }
}

fn full() -> Failure {
    Failure::new(Code::QueueFull, "Too many programs are waiting to run: try again in a few seconds.")
}

impl fmt::Debug for Ticket {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Ticket").field("held", &self.held).finish_non_exhaustive()
    }
}

impl Ticket {
    /// The position among the waiting runs of the owner, now and later.
    pub fn position(&self) -> QueuePosition {
        self.entry.position()
    }

    /// Waits for the conversation's lock, then for a slot: a conversation that waits for itself holds no slot.
    ///
    /// # Errors
    /// [`Code::QueueTimeout`] when it takes too long.
    pub async fn turn(self) -> Result<Permit, Failure> {
        let Self { entry, held, lock, slots, wait_max } = self;
        let both = async {
            let lock = lock.await;
            let next = held.of_owner.next().await;
            // The semaphore is never closed, so the error cannot happen; it is mapped anyway.
            let slot = slots.acquire_owned().await.map_err(|_| Failure::stopping())?;
            drop((next, entry));
            Ok(Permit { slot, _lock: lock, _held: held })
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

impl Permit {
    /// Gives back the conversation and the capacity.
    pub fn into_slot(self) -> OwnedSemaphorePermit {
        self.slot
    }
}

#[cfg(test)]
mod tests;
