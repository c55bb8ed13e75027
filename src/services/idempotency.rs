//! Idempotency keys: a repeated request returns the run that the first one began.
//!
//! Bounded by count and age: the oldest keys are dropped first. Knows no HTTP: a key is a text, a request is a digest.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::runs::RunHandle;
use crate::domain::{
    error::{Code, Failure},
    id::RunId,
    owner::Principal,
};

const KEYS_MAX: usize = 1000;
const AGE_MAX: Duration = Duration::from_hours(24);

/// A digest of a request's body.
pub type Digest = [u8; 32];

/// The keys of known runs, oldest first. A search is linear, bounded by [`KEYS_MAX`].
#[derive(Default)]
pub struct Idempotency(Mutex<VecDeque<Entry>>);

struct Entry {
    who: Principal,
    key: String,
    digest: Digest,
    run: RunId,
    at: Instant,
}

pub enum Once {
    /// The run was begun by this request.
    New(RunHandle),
    /// The run was begun by an earlier, identical request.
    Again(RunId),
}

impl Idempotency {
    /// Whether a run is known for this key.
    pub fn knows(&self, who: &Principal, key: &str) -> bool {
        find(&self.entries(), who, key).is_some()
    }

    /// Begins a run, unless the same request began one before.
    ///
    /// # Errors
    /// [`Code::IdempotencyKeyReused`] when the key was used with another request; otherwise those of `begin`, and then
    /// the key is not kept.
    pub fn once(
        &self,
        who: &Principal,
        key: String,
        digest: Digest,
        begin: impl FnOnce() -> Result<RunHandle, Failure>,
    ) -> Result<Once, Failure> {
        // The lock is held while the run begins, which never waits, so two concurrent requests begin one run.
        let mut entries = self.entries();
        match find(&entries, who, &key) {
            Some(known) if known.digest == digest => return Ok(Once::Again(known.run)),
            Some(_) => {
                let why = "Idempotency-Key: it was used with another request: choose a new key for each request.";
                return Err(Failure::new(Code::IdempotencyKeyReused, why).about("Idempotency-Key"));
            }
            None => {}
        }
        let handle = begin()?;
        if entries.len() >= KEYS_MAX {
            entries.pop_front();
        }
        entries.push_back(Entry { who: who.clone(), key, digest, run: handle.id(), at: Instant::now() });
        Ok(Once::New(handle))
    }

    fn entries(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while entries.pop_front_if(|oldest| oldest.at.elapsed() > AGE_MAX).is_some() {}
        entries
    }
}

fn find<'a>(entries: &'a VecDeque<Entry>, who: &Principal, key: &str) -> Option<&'a Entry> {
    entries.iter().find(|entry| entry.key == key && entry.who == *who)
}
