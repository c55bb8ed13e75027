//! The share of each owner: one of its runs at a time waits for a slot, so owners alternate as conversations do, and
//! where there are several owners, none holds more than three quarters of the places.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{domain::owner::Principal, services::shares::has_others};

#[derive(Debug)]
pub(super) struct Owners {
    places: usize,
    /// Those that hold places.
    seen: Mutex<HashMap<Principal, Arc<Owner>>>,
    /// Two of those that asked since the start.
    asked: Mutex<HashSet<Principal>>,
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
        Self { places, seen: Mutex::default(), asked: Mutex::default() }
    }

    /// `None` when the owner's share is used up.
    pub(super) fn take(&self, who: &Principal) -> Option<Share> {
        let mut seen = self.seen.lock();
        seen.retain(|_, owner| Arc::strong_count(owner) > 1);
        let fresh = || Arc::new(Owner { held: AtomicUsize::new(0), next: Arc::new(Semaphore::new(1)) });
        let owner = Arc::clone(seen.entry(who.clone()).or_insert_with(fresh));
        let most = if has_others(&mut self.asked.lock(), who) { (self.places * 3 / 4).max(1) } else { self.places };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_without_places_are_forgotten_and_still_show_that_there_are_several() {
        let owners = Owners::new(8);
        let who = |n: usize| -> Principal { format!("owner-{n}").parse().expect("an owner") };
        let alone: Vec<_> = (0..9).map_while(|_| owners.take(&who(0))).collect();
        assert_eq!(alone.len(), 8);
        drop(alone);
        (1..100).for_each(|n| drop(owners.take(&who(n))));
        assert!(owners.seen.lock().len() <= 3);
        let of_several: Vec<_> = (0..9).map_while(|_| owners.take(&who(100))).collect();
        assert_eq!(of_several.len(), 6);
    }
}
