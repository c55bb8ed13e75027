//! The share of each owner: one of its runs at a time waits for a slot, so owners alternate as conversations do, and
//! where there are several owners, none holds more than three quarters of the places.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::domain::owner::Principal;

/// Of the owners that were seen since the start, which are bounded by the number of tokens.
#[derive(Debug)]
pub(super) struct Owners {
    places: usize,
    seen: Mutex<HashMap<Principal, Arc<Owner>>>,
}

#[derive(Debug)]
struct Owner {
    held: AtomicUsize,
    next: Arc<Semaphore>,
}

/// One of the places that an owner holds, until it is dropped.
#[derive(Debug)]
pub(super) struct Share(Arc<Owner>);

impl Owners {
    pub(super) fn new(places: usize) -> Self {
        Self { places, seen: Mutex::default() }
    }

    /// `None` when the owner's share is used up.
    pub(super) fn take(&self, who: &Principal) -> Option<Share> {
        let mut seen = self.seen.lock();
        let fresh = || Arc::new(Owner { held: AtomicUsize::new(0), next: Arc::new(Semaphore::new(1)) });
        let owner = Arc::clone(seen.entry(who.clone()).or_insert_with(fresh));
        let others = seen.keys().any(|other| other != who && !other.is_self_test());
        let most = if others { (self.places * 3 / 4).max(1) } else { self.places };
        // The lock is held, so no other thread counts up meanwhile.
        (owner.held.load(Ordering::Relaxed) < most).then(|| {
            owner.held.fetch_add(1, Ordering::Relaxed);
            Share(owner)
        })
    }

    /// How many owners hold places, and how many the one with the most holds.
    pub(super) fn load(&self) -> (usize, usize) {
        let seen = self.seen.lock();
        let held = seen.values().map(|owner| owner.held.load(Ordering::Relaxed)).filter(|held| *held > 0);
        held.fold((0, 0), |(owners, most), held| (owners + 1, most.max(held)))
    }
}

impl Share {
    /// Waits until the owner's next run may wait for a slot.
    pub(super) async fn next(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0.next).acquire_owned().await.ok()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
    }
}
