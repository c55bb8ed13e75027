//! A request that is sent again with its idempotency key leads to the run that it began.
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

/// The keys that led to a run, oldest first. A search looks at all of them, which [`KEYS_MAX`] bounds.
#[derive(Default)]
pub struct Idempotency(Mutex<VecDeque<Entry>>);

struct Entry {
    who: Principal,
    key: String,
    digest: Digest,
    run: RunId,
    at: Instant,
}

/// The run of a key.
pub enum Once {
    /// The run was begun now.
    New(RunHandle),
    /// It was begun before, by the same request.
    Again(RunId),
}

impl Idempotency {
    /// Whether this key led to a run.
    pub fn knows(&self, who: &Principal, key: &str) -> bool {
        find(&self.entries(), who, key).is_some()
    }

    /// Begins a run, unless the same request began one before.
    ///
    /// # Errors
    /// [`Code::IdempotencyKeyReused`] when the key came with another request; else those of `begin`, and then the key is
    /// not kept: nothing was begun.
    pub fn once(
        &self,
        who: &Principal,
        key: String,
        digest: Digest,
        begin: impl FnOnce() -> Result<RunHandle, Failure>,
    ) -> Result<Once, Failure> {
        // Locked while the run begins, which never waits: two requests at once begin one run.
        let mut entries = self.entries();
        match find(&entries, who, &key) {
            Some(known) if known.digest == digest => return Ok(Once::Again(known.run)),
            Some(_) => {
                let why = "Idempotency-Key: it came with another request before: choose a new one for each request.";
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
