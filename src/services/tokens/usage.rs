//! What tokens with limits of a day have used at other servers, and here before the start: read from the history every
//! [`READ_EVERY`] rounds.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicI64, Ordering},
    },
};

use super::{Token, Tokens};
use crate::{
    domain::{id::InstanceId, token::DAY},
    ports::database::{DatabaseError, TokenStore},
};

/// In rounds of [`Tokens::follow`].
const READ_EVERY: u64 = 10;

/// Which lines of the history are this process' own: those that it counts itself.
#[derive(Default)]
pub(super) struct OwnLines {
    instance: OnceLock<InstanceId>,
    /// The runs of this process began at this moment or later, in unix milliseconds: when it began, or earlier where
    /// the clock was set back since.
    since: AtomicI64,
}

impl Tokens {
    /// From now on what runs of others used counts too. Once.
    pub fn count_beside(&self, instance: InstanceId) {
        self.own.since.store(self.began, Ordering::Relaxed);
        let _ = self.own.instance.set(instance);
    }

    /// Reads it, in the rounds in which it is due.
    pub(super) async fn read_spent(&self, store: &dyn TokenStore, round: u64) -> Result<(), DatabaseError> {
        let now = self.now();
        let own_since = self.own.since.fetch_min(now, Ordering::Relaxed).min(now);
        let Some(instance) = self.own.instance.get().filter(|_| round.is_multiple_of(READ_EVERY)) else {
            return Ok(());
        };
        let limited: Vec<Arc<Token>> =
            self.known.read().tokens.values().filter(|token| token.record.grant.limits.is_daily()).cloned().collect();
        if limited.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = limited.iter().map(|token| token.record.id).collect();
        let since = now.saturating_sub(i64::try_from(DAY.as_millis()).unwrap_or(i64::MAX));
        let spent: HashMap<_, _> = store.spent(&ids, since, (*instance, own_since)).await?.into_iter().collect();
        // A token and those that came from it share what they spend.
        let mut families: HashMap<usize, (Arc<Token>, (u64, u64))> = HashMap::new();
        for token in limited {
            let (_, (cpu_ms, bytes)) = families.entry(token.family()).or_insert((Arc::clone(&token), (0, 0)));
            let (more_cpu_ms, more_bytes) = spent.get(&token.record.id).copied().unwrap_or_default();
            *cpu_ms = cpu_ms.saturating_add(more_cpu_ms);
            *bytes = bytes.saturating_add(more_bytes);
        }
        for (token, spent) in families.into_values() {
            token.spent_beside(spent);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
