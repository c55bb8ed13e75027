//! How many permits each key, such as an owner, may hold at once. Only keys with permits in use are kept.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::Semaphore;

#[derive(Debug)]
pub struct Shares<K> {
    /// Of each key.
    pub permits: usize,
    used: Mutex<HashMap<K, Weak<Semaphore>>>,
}

impl<K: Clone + Eq + Hash> Shares<K> {
    pub fn new(permits: usize) -> Self {
        Self { permits, used: Mutex::default() }
    }

    /// The share of a key. It is kept as long as a reference to it or one of its permits.
    pub fn of(&self, key: &K) -> Arc<Semaphore> {
        let mut used = self.used.lock();
        used.retain(|_, share| share.strong_count() > 0);
        used.get(key).and_then(Weak::upgrade).unwrap_or_else(|| {
            let share = Arc::new(Semaphore::new(self.permits));
            used.insert(key.clone(), Arc::downgrade(&share));
            share
        })
    }
}
