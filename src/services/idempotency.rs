//! Idempotency keys: a repeated request returns the run that the first one began.
//!
//! A key is kept for a day and never dropped earlier, so a program is not run twice. Keys are therefore bounded by
//! shares: of a principal, and in it of a conversation. Knows no HTTP: a key is a text, a request is a digest.
//!
//! A key is in the database before its run begins, so a repeated request begins no second run after a restart, or at
//! another server. When the database does not answer within [`KEEP_MAX`], the run begins anyway, and is counted.
//!
//! ```text
//! load ── one task: reads the keys of the last day, then ends
//! once ── a task that stores a key: continues when its request is aborted. Where the run did not begin, it removes the
//!         key before the same key is looked at again, or where that fails, within half a minute
//! ```

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Mutex as AsyncMutex, OwnedMutexGuard, oneshot},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    domain::{Clock, Code, ConversationId, Failure, Principal, RunId, clock::DAY_MS},
    ports::{
        database::{DatabaseError, DbResult, ROUND_MAX, within},
        history::{KeyRecord, KeyStore},
    },
    services::shares::WeakMap,
};

/// Keys of one principal, and of one conversation.
const KEYS_MAX: usize = 16_384;
const CONVERSATION_KEYS_MAX: usize = 2048;
const AGE_MAX: Duration = Duration::from_millis(DAY_MS.unsigned_abs());
/// How long a run waits for its key to be stored.
const KEEP_MAX: Duration = Duration::from_millis(250);
/// How long a request that another server has to answer waits for its key to be removed.
const RELEASE_MAX: Duration = Duration::from_secs(1);
/// After which pauses the removal of a key is tried again that failed: before [`SETTLED_MS`], and seldom, as many may
/// fail at once.
const RELEASE_AGAIN: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(20)];
/// After this time a run has begun or its key was removed, at whichever server, in milliseconds.
const SETTLED_MS: i64 = 60_000;
/// Keys that are read at the start: the newest.
const LOADED_MAX: usize = 100_000;
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// How often principals are looked for whose keys have all expired: those of an issuer are without number.
const PRUNE_EVERY: Duration = Duration::from_hours(1);

/// A digest of a request's body.
pub type Digest = [u8; 32];

/// The keys of known runs of all principals that have some.
pub struct Idempotency {
    all: Mutex<HashMap<Principal, Keys>>,
    pruned: Mutex<Instant>,
    /// Where keys outlive the process.
    store: Arc<dyn KeyStore>,
    clock: Arc<dyn Clock>,
    /// Held while a run begins, so that concurrent requests with one key begin one run. Whether the key of a run that
    /// did not begin was left in the database.
    locks: WeakMap<(Principal, String), AsyncMutex<bool>>,
    /// When this process began, in unix milliseconds.
    began: i64,
    /// Runs that began before their key was stored.
    unstored: AtomicU64,
}

#[derive(Default)]
struct Keys {
    known: HashMap<Arc<str>, (Digest, RunId)>,
    /// Oldest first.
    order: VecDeque<(Instant, Arc<str>, Option<ConversationId>)>,
    of_conversation: HashMap<ConversationId, usize>,
}

pub enum Once<T> {
    /// The run was begun by this request.
    New(T),
    /// The run was begun by an earlier, identical request.
    Again(RunId),
}

impl Idempotency {
    pub fn new(store: Arc<dyn KeyStore>, clock: Arc<dyn Clock>) -> Self {
        let (all, locks, unstored) = (Mutex::default(), WeakMap::default(), AtomicU64::new(0));
        let (began, pruned) = (clock.unix_ms(), Mutex::new(Instant::now()));
        Self { all, pruned, store, clock, locks, began, unstored }
    }

    /// Whether a run is known for this key.
    pub fn knows(&self, who: &Principal, key: &str) -> bool {
        self.all.lock().get_mut(who).is_some_and(|keys| keys.without_expired().known.contains_key(key))
    }

    /// Begins a run, unless the same request began one before. `conversation` is the one that the request names.
    ///
    /// # Errors
    /// [`Code::IdempotencyKeyReused`] when the key was used with another request, [`Code::RateLimited`] when the
    /// principal or the conversation has too many keys; otherwise those of `begin`, and then the key is not kept. One
    /// that names a conversation is returned when the key is removed, and names none when that takes too long.
    pub async fn once<T>(
        &self,
        who: &Principal,
        conversation: Option<&ConversationId>,
        (key, digest): (String, Digest),
        begin: impl FnOnce(RunId) -> Result<T, Failure>,
    ) -> Result<Once<T>, Failure> {
        let lock = self.locks.of(&(who.clone(), key.clone()), AsyncMutex::default);
        let turn = Arc::clone(&lock).lock_owned().await;
        if let Some(known) = self.known(who, conversation, &key)? {
            return again(known, digest);
        }
        let (run, unix_ms) = (RunId::new(), self.clock.unix_ms());
        let record = KeyRecord { owner: who.clone(), key, digest, run, conversation: conversation.cloned(), unix_ms };
        let (mut pending, stored) = self.begin_storing(record.clone(), turn);
        if let Some(earlier) = self.stored(stored).await {
            let known = (earlier.digest, earlier.run);
            // A younger one is of a request that another server answers now: where that refuses the run, the key is
            // removed from the database only.
            if self.clock.unix_ms().saturating_sub(earlier.unix_ms) > SETTLED_MS {
                self.add(earlier, Instant::now());
            }
            pending.settle();
            return again(known, digest);
        }
        match begin(run) {
            Ok(new) => {
                self.add(record, Instant::now());
                pending.settle();
                Ok(Once::New(new))
            }
            Err(failure) if failure.conversation.is_none() => Err(failure),
            Err(failure) => {
                // The server that has the conversation is asked next, and must not find the key of this one.
                drop(pending);
                let is_removed = timeout(RELEASE_MAX, lock.lock()).await.is_ok_and(|is_left| !*is_left);
                let conversation = failure.conversation.clone().filter(|_| is_removed);
                Err(Failure { conversation, ..failure })
            }
        }
    }

    /// Reads the keys of the last day; tries again until it could, or until `stop`.
    pub async fn load(&self, stop: CancellationToken) {
        let records = loop {
            let read = within(ROUND_MAX, self.store.keys(self.since(), LOADED_MAX));
            let Some(read) = stop.run_until_cancelled(read).await else { return };
            match read {
                Ok(records) => break records,
                Err(_) if stop.run_until_cancelled(sleep(TRY_AGAIN)).await.is_none() => return,
                Err(_) => {}
            }
        };
        let (now, now_ms) = (Instant::now(), self.clock.unix_ms());
        // A younger one is of a request that this process answers now, and may be refused yet.
        for record in records.into_iter().filter(|record| record.unix_ms < self.began) {
            let age = Duration::from_millis(u64::try_from(now_ms.saturating_sub(record.unix_ms)).unwrap_or_default());
            // Where the machine has not been up for so long, it is kept longer.
            self.add(record, now.checked_sub(age).unwrap_or(now));
        }
    }

    /// Runs that began before their key was stored, since the start.
    pub fn unstored(&self) -> u64 {
        self.unstored.load(Ordering::Relaxed)
    }

    /// The request and the run of a key, if it is known; otherwise whether there is room for it.
    fn known(
        &self,
        who: &Principal,
        conversation: Option<&ConversationId>,
        key: &str,
    ) -> Result<Option<(Digest, RunId)>, Failure> {
        let mut all = self.all.lock();
        let Some(keys) = all.get_mut(who).map(Keys::without_expired) else { return Ok(None) };
        match keys.known.get(key) {
            Some(known) => Ok(Some(*known)),
            None => keys.check_room(conversation).map(|()| None),
        }
    }

    /// Begins to store a key. What was stored for it before, if something was, is sent.
    fn begin_storing(&self, record: KeyRecord, turn: Turn) -> (PendingKey, oneshot::Receiver<Kept>) {
        let (store, since) = (Arc::clone(&self.store), self.since());
        let ((kept, stored), (refused, refusal)) = (oneshot::channel(), oneshot::channel());
        tokio::spawn(async move {
            let earlier = within(ROUND_MAX, store.keep(&record, since)).await;
            let is_stored = matches!(earlier, Ok(None));
            // The request may be gone.
            let _ = kept.send(earlier);
            if let Ok(turn) = refusal.await {
                release(&*store, &record, is_stored, turn).await;
            }
        });
        (PendingKey(Some((refused, turn))), stored)
    }

    /// Waits for the key to be stored, for a bounded time. What was stored for the key before, if something was.
    async fn stored(&self, stored: oneshot::Receiver<Kept>) -> Option<KeyRecord> {
        let ended = |_| Err(DatabaseError("the task that stores the key has ended".to_owned()));
        let earlier = within(KEEP_MAX, async { stored.await.unwrap_or_else(ended) }).await;
        if let Err(error) = &earlier
            && self.unstored.fetch_add(1, Ordering::Relaxed) == 0
        {
            warn!(%error, "an idempotency key was not stored in time: after a restart its request would run again");
        }
        earlier.ok().flatten()
    }

    fn add(&self, record: KeyRecord, at: Instant) {
        let KeyRecord { owner, key, digest, run, conversation, .. } = record;
        let (mut all, mut pruned) = (self.all.lock(), self.pruned.lock());
        if pruned.elapsed() >= PRUNE_EVERY {
            *pruned = Instant::now();
            all.retain(|_, keys| !keys.without_expired().order.is_empty());
        }
        all.entry(owner).or_default().add(at, key.into(), digest, run, conversation);
    }

    fn since(&self) -> i64 {
        self.clock.unix_ms().saturating_sub(DAY_MS)
    }
}

fn again<T>((known, run): (Digest, RunId), digest: Digest) -> Result<Once<T>, Failure> {
    if known == digest {
        return Ok(Once::Again(run));
    }
    let why = "Idempotency-Key: it was used with another request: choose a new key for each request.";
    Err(Failure::new(Code::IdempotencyKeyReused, why).about("Idempotency-Key"))
}

/// Removes the key of a run that did not begin. Its turn lasts until that was tried once.
async fn release(store: &dyn KeyStore, record: &KeyRecord, is_stored: bool, mut turn: Turn) {
    let mut released = within(ROUND_MAX, store.release(record)).await;
    *turn = is_stored && released.is_err();
    drop(turn);
    for pause in RELEASE_AGAIN {
        if released.is_ok() {
            return;
        }
        sleep(pause).await;
        released = within(ROUND_MAX, store.release(record)).await;
    }
    if let Err(error) = released {
        warn!(%error, "the idempotency key of a run that did not begin is left");
    }
}

/// What was stored for a key before.
type Kept = DbResult<Option<KeyRecord>>;
/// Held while a run with a key begins.
type Turn = OwnedMutexGuard<bool>;

/// A key that is being stored, with its turn. Unless it is settled, the task that stores it gets the turn and removes
/// the key, also where the request is aborted.
struct PendingKey(Option<(oneshot::Sender<Turn>, Turn)>);

impl PendingKey {
    /// The key stays, as a run began with it. To be called once it is known in memory: its turn ends.
    fn settle(&mut self) {
        self.0 = None;
    }
}

impl Drop for PendingKey {
    fn drop(&mut self) {
        if let Some((refused, turn)) = self.0.take() {
            let _ = refused.send(turn);
        }
    }
}

impl Keys {
    /// Without those that have expired.
    fn without_expired(&mut self) -> &mut Self {
        while let Some((_, key, conversation)) = self.order.pop_front_if(|(at, ..)| at.elapsed() > AGE_MAX) {
            self.known.remove(&key);
            if let Some(id) = conversation
                && let Some(count) = self.of_conversation.get_mut(&id)
            {
                *count -= 1;
                if *count == 0 {
                    self.of_conversation.remove(&id);
                }
            }
        }
        self
    }

    fn check_room(&self, conversation: Option<&ConversationId>) -> Result<(), Failure> {
        let full = |whose, max| {
            let mut of_it = self.order.iter().filter(|(.., id)| whose == "owner" || id.as_ref() == conversation);
            let wait = of_it.next().map_or(AGE_MAX, |(at, ..)| AGE_MAX.saturating_sub(at.elapsed()));
            let why = format!(
                "Idempotency-Key: this {whose} has begun {max} runs with a key within 24 hours, which is the most: \
                 send the request without a key, or later."
            );
            Err(Failure::new(Code::RateLimited, why).about("Idempotency-Key").retry_after(wait.as_secs() + 1))
        };
        let of_it = conversation.and_then(|id| self.of_conversation.get(id)).copied().unwrap_or_default();
        match (of_it, self.order.len()) {
            (CONVERSATION_KEYS_MAX.., _) => full("conversation", CONVERSATION_KEYS_MAX),
            (_, KEYS_MAX..) => full("owner", KEYS_MAX),
            _ => Ok(()),
        }
    }

    /// A key that is known stays as it is.
    fn add(&mut self, at: Instant, key: Arc<str>, digest: Digest, run: RunId, conversation: Option<ConversationId>) {
        if self.known.contains_key(&key) {
            return;
        }
        if let Some(id) = &conversation {
            *self.of_conversation.entry(id.clone()).or_default() += 1;
        }
        self.known.insert(Arc::clone(&key), (digest, run));
        // Mostly at the end, and while keys are read, at the front.
        let index = self.order.partition_point(|(other, ..)| *other <= at);
        self.order.insert(index, (at, key, conversation));
    }
}

#[cfg(test)]
mod tests;
