//! How many calls an owner may make in a minute under a rule: the generic cell rate algorithm of `governor`.

use std::{collections::HashMap, num::NonZeroU32, sync::Arc};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use parking_lot::Mutex;

use crate::domain::owner::Principal;

/// By server, rule and what it allows, which operators may change.
type Limiters = HashMap<(String, usize, NonZeroU32), Arc<DefaultKeyedRateLimiter<Principal>>>;

#[derive(Default)]
pub(super) struct Rates(Mutex<Limiters>);

impl Rates {
    /// Counts one call, unless there were too many.
    pub(super) fn take(&self, server: &str, rule: usize, per_minute: NonZeroU32, owner: &Principal) -> bool {
        let new = || Arc::new(RateLimiter::keyed(Quota::per_minute(per_minute)));
        let limiter = {
            let mut all = self.0.lock();
            Arc::clone(all.entry((server.to_owned(), rule, per_minute)).or_insert_with(new))
        };
        limiter.check_key(owner).is_ok()
    }
}
