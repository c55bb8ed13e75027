//! Values by key that live as long as they are held: locks, how many permits or bytes of memory each key, such as an
//! owner, may hold at once, and the rings of notices of owners while they have readers.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::{
    OwnedSemaphorePermit, Semaphore,
    broadcast::{Receiver, Sender},
};

use crate::domain::Principal;

/// The bytes of memory that one permit stands for.
const UNIT_BYTES: usize = 1024;

/// Only values that something holds are kept; the next call for any key removes the others.
#[derive(Debug)]
pub struct WeakMap<K, V>(Mutex<HashMap<K, Weak<V>>>);

impl<K, V> Default for WeakMap<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Clone + Eq + Hash, V> WeakMap<K, V> {
    pub fn of(&self, key: &K, new: impl FnOnce() -> V) -> Arc<V> {
        let mut held = self.0.lock();
        held.retain(|_, value| value.strong_count() > 0);
        held.get(key).and_then(Weak::upgrade).unwrap_or_else(|| {
            let value = Arc::new(new());
            held.insert(key.clone(), Arc::downgrade(&value));
            value
        })
    }

    /// Whether something holds the value of a key.
    pub fn has(&self, key: &K) -> bool {
        self.0.lock().get(key).is_some_and(|value| value.strong_count() > 0)
    }

    pub fn remove(&self, key: &K) -> Option<Arc<V>> {
        self.0.lock().remove(key)?.upgrade()
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.0.lock().values().filter(|value| value.strong_count() > 0).count()
    }
}

#[derive(Debug)]
pub struct Shares<K> {
    /// The permits of each key.
    pub permits: usize,
    used: WeakMap<K, Semaphore>,
}

impl<K: Clone + Eq + Hash> Shares<K> {
    pub fn new(permits: usize) -> Self {
        Self { permits, used: WeakMap::default() }
    }

    /// The share of a key. It is kept as long as a reference to it or one of its permits.
    pub fn of(&self, key: &K) -> Arc<Semaphore> {
        self.used.of(key, || Semaphore::new(self.permits))
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.used.held()
    }
}

/// Notes that an owner asks, and returns whether another one has. Two are kept at most, which tell that to each. The
/// self-test is no owner that others share with.
pub(super) fn has_others(asked: &mut HashSet<Principal>, who: &Principal) -> bool {
    if !who.is_self_test() && asked.len() < 2 {
        asked.insert(who.clone());
    }
    asked.iter().any(|other| other != who)
}

/// Memory that all keys share. One key has half of it.
#[derive(Debug)]
pub struct SharedMemory<K> {
    all: Arc<Semaphore>,
    units: usize,
    shares: Shares<K>,
}

/// What one value has of it.
#[derive(Debug)]
pub struct HeldMemory {
    _share: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl<K: Clone + Eq + Hash> SharedMemory<K> {
    pub fn new(bytes_max: usize) -> Self {
        let units = bytes_max.div_ceil(UNIT_BYTES).min(Semaphore::MAX_PERMITS);
        Self { all: Arc::new(Semaphore::new(units)), units, shares: Shares::new(units / 2) }
    }

    /// Room for a value, unless others hold it. One that is larger than its key's half has room while its key holds no
    /// other.
    pub fn take(&self, key: &K, bytes: usize) -> Option<HeldMemory> {
        let take = |of: &Arc<Semaphore>, most: usize| {
            let units = u32::try_from(bytes.div_ceil(UNIT_BYTES).min(most)).ok()?;
            Arc::clone(of).try_acquire_many_owned(units).ok()
        };
        let share = take(&self.shares.of(key), self.shares.permits)?;
        Some(HeldMemory { _share: share, _all: take(&self.all, self.units)? })
    }
}

/// Each owner has a ring of notices while it has readers, so what others do overtakes no reader. A ring has a fixed
/// size: a sender never waits for a reader, and a reader that the ring overtakes learns that it missed some.
pub(super) struct Rings<T> {
    /// How many notices a reader may be behind before it misses some.
    behind_max: usize,
    rings: Mutex<HashMap<Principal, Sender<T>>>,
}

impl<T: Clone> Rings<T> {
    pub(super) fn new(behind_max: usize) -> Self {
        Self { behind_max, rings: Mutex::default() }
    }

    pub(super) fn send(&self, owner: &Principal, notice: impl FnOnce() -> T) {
        if let Some(ring) = self.rings.lock().get(owner).filter(|ring| ring.receiver_count() > 0) {
            // An error means only that the last reader has gone.
            drop(ring.send(notice()));
        }
    }

    /// Sends the same to each reader of each owner.
    pub(super) fn send_to_all(&self, notice: &T) {
        for ring in self.rings.lock().values() {
            drop(ring.send(notice.clone()));
        }
    }

    /// The notices of an owner from now on.
    pub(super) fn subscribe(&self, owner: &Principal) -> Receiver<T> {
        let mut rings = self.rings.lock();
        rings.retain(|_, ring| ring.receiver_count() > 0);
        rings.entry(owner.clone()).or_insert_with(|| Sender::new(self.behind_max)).subscribe()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::broadcast::error::TryRecvError;

    use super::*;

    #[test]
    fn notices_of_other_owners_overtake_no_reader() {
        let rings = Rings::new(2);
        let [ann, bob]: [Principal; 2] = ["ann", "bob"].map(|name| name.parse().expect("an owner"));
        let (mut of_ann, mut of_bob) = (rings.subscribe(&ann), rings.subscribe(&bob));
        for notice in 0..3 {
            rings.send(&bob, || notice);
        }
        assert_eq!(of_ann.try_recv(), Err(TryRecvError::Empty));
        assert_eq!((of_bob.try_recv(), of_bob.try_recv()), (Err(TryRecvError::Lagged(1)), Ok(1)));
        drop(of_bob);
        drop(rings.subscribe(&ann));
        assert_eq!(rings.rings.lock().len(), 1, "a ring without readers is not kept");
    }
}
