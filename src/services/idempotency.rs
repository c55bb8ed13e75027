//! A request that is sent again with its idempotency key leads to the run that it began.
//!
//! Bounded by count and age: the oldest keys are dropped first. Knows no HTTP: a key is a text, a request is a digest.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, PoisonError},
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

type Name = (Principal, String);

/// The keys that led to a run.
#[derive(Default)]
pub struct Idempotency(Mutex<Known>);

#[derive(Default)]
struct Known {
    runs: HashMap<Name, Begun>,
    /// Oldest first.
    order: VecDeque<Name>,
}

struct Begun {
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
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.prune();
        known.runs.contains_key(&(who.clone(), key.to_owned()))
    }

    /// Begins a run, unless the same request began one before.
    ///
    /// # Errors
    /// [`Code::IdempotencyKeyReused`] when the key came with another request; else those of `begin`, and then the key is not
    /// kept: nothing was begun.
    pub fn once(
        &self,
        who: &Principal,
        key: String,
        digest: Digest,
        begin: impl FnOnce() -> Result<RunHandle, Failure>,
    ) -> Result<Once, Failure> {
        // Locked while the run begins, which never waits: two requests at once begin one run.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.prune();
        let name = (who.clone(), key);
        match known.runs.get(&name) {
            Some(begun) if begun.digest == digest => return Ok(Once::Again(begun.run)),
            Some(_) => {
                let why = "Idempotency-Key: it came with another request before: choose a new one for each request.";
                return Err(Failure::new(Code::IdempotencyKeyReused, why).about("Idempotency-Key"));
            }
            None => {}
        }
        let handle = begin()?;
        known.order.push_back(name.clone());
        known.runs.insert(name, Begun { digest, run: handle.id(), at: Instant::now() });
        Ok(Once::New(handle))
    }
}

impl Known {
    /// Drops old keys, and makes room for one more.
    fn prune(&mut self) {
        while let Some(oldest) = self.order.front() {
            let old = self.runs.get(oldest).is_none_or(|begun| begun.at.elapsed() > AGE_MAX);
            if !old && self.order.len() < KEYS_MAX {
                return;
            }
            self.runs.remove(oldest);
            self.order.pop_front();
        }
    }
}
