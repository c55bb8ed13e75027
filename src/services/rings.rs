//! Rings of notices: each owner has one while it has readers, so what others do overtakes no reader. A ring has a fixed
//! size: a sender never waits for a reader, and a reader that the ring overtakes learns that it missed some.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::broadcast::{Receiver, Sender};

use crate::domain::owner::Principal;

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
