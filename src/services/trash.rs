//! Deletes what takes long behind everybody's back.
//!
//! ```text
//! Trash::empty ── one blocking step at a time, however often it is asked for; ends when the trash is empty, or by `stop`
//! ```
//!
//! What is in the trash has no name any more, so nobody waits for this. What is left when the process ends is deleted after
//! the next start.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use tracing::warn;

use super::janitor::chain;
use crate::adapters::storage::Store;

/// The one who empties it. A clone is the same one.
#[derive(Debug, Clone)]
pub struct Trash(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Arc<Store>,
    /// How often it was asked for since it last began; 0 while nobody is at it.
    asked: AtomicU64,
    stop: AtomicBool,
}

impl Trash {
    /// Nobody is at it yet.
    pub fn new(store: Arc<Store>) -> Self {
        Self(Arc::new(Inner { store, asked: AtomicU64::new(0), stop: AtomicBool::new(false) }))
    }

    /// Begins to empty the trash, or has whoever is at it look once more. Does not wait.
    pub fn empty(&self) {
        if self.0.asked.fetch_add(1, Ordering::SeqCst) == 0 {
            let inner = Arc::clone(&self.0);
            tokio::task::spawn_blocking(move || inner.work());
        }
    }

    /// Ends the work at its next step.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::SeqCst);
    }
}

impl Inner {
    fn work(&self) {
        loop {
            let asked = self.asked.load(Ordering::SeqCst);
            if let Err(error) = self.store.empty_trash(&self.stop) {
                warn!(error = %chain(&error), "something that was deleted still takes space");
            }
            if self.asked.compare_exchange(asked, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return;
            }
        }
    }
}
