//! Values by key that live as long as they are held: locks, and how many permits each key, such as an owner, may hold
//! at once.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::Semaphore;

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

    pub fn remove(&self, key: &K) -> Option<Arc<V>> {
        self.0.lock().remove(key)?.upgrade()
    }
}

#[derive(Debug)]
pub struct Shares<K> {
    /// Of each key.
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
}
