//! Keeps the tokens in memory true to the database, which other processes change.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{CATCH_UP_MAX, Token, Tokens};
use crate::{
    domain::{
        StepWatch, TokenRecord,
        clock::{DAY_MS, every},
    },
    ports::database::{DbResult, ROUND_MAX, within},
};

/// How often changes of other processes are read, and so how long a token that another process revoked stays valid.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
/// How long the rest may take when the server stops.
const FLUSH_MAX: Duration = Duration::from_secs(5);
/// How far the clocks of servers that share a database may be apart for a change to be read in the next round.
const CLOCKS_APART_MS: i64 = 10_000;
/// In how many rounds all is read again, for changes that bear the time of a clock which is further apart.
const READ_ALL_EVERY: u64 = 60;
/// How often tokens that ended are looked for, in rounds, and how long they are listed after their end.
const FORGET_EVERY: u64 = 3600;
const FORGET_AFTER_MS: i64 = 30 * DAY_MS;

impl Tokens {
    /// Whether the tokens of the database are known. Before, a token that is not known may be one of them.
    pub fn is_loaded(&self) -> bool {
        self.known.read().is_loaded
    }

    /// Reads the tokens of the database, if it answers.
    pub async fn load(&self) {
        if let Err(error) = self.round(0).await {
            warn!(%error, "the tokens of the database are not known yet");
        }
    }

    /// The next reading is of all tokens, whenever they have changed by the clock of the server that changed them.
    pub fn read_all_next(&self) {
        self.known.write().seen = 0;
    }

    /// Keeps the tokens in memory true to the database until `stop`.
    pub async fn follow(self: Arc<Self>, stop: CancellationToken) {
        let mut rounds = every(FOLLOW_EVERY);
        let (mut round, mut is_away, steps) = (1_u64, false, StepWatch::default());
        while stop.run_until_cancelled(rounds.tick()).await.is_some() {
            if round.is_multiple_of(READ_ALL_EVERY) {
                self.read_all_next();
            }
            let reading = within(ROUND_MAX, self.round(round));
            let Some(mut followed) = stop.run_until_cancelled(reading).await else { break };
            // After a step of the clock a token that is valid may look as if it ended long ago.
            let settled_ms = steps.settled_ms(self.clock.as_ref());
            if let Some(now) = settled_ms.filter(|_| followed.is_ok() && round.is_multiple_of(FORGET_EVERY)) {
                let forgetting = within(ROUND_MAX, self.forget(now));
                let Some(forgotten) = stop.run_until_cancelled(forgetting).await else { break };
                followed = forgotten;
            }
            if let (Err(error), false) = (&followed, is_away) {
                warn!(%error, "changes of tokens cannot be read: those that are known go on");
            }
            is_away = followed.is_err();
            round += u64::from(!is_away);
        }
        if let Err(error) = within(FLUSH_MAX, self.store_uses()).await {
            warn!(%error, "when tokens were last used could not be stored");
        }
    }

    /// Learns at once what other processes have changed, for a token that may be another server's newest. Whether it
    /// did: not more often than [`super::CATCHES_UP`], and not when the database takes long.
    pub async fn catch_up(&self) -> bool {
        self.catches_up.check().is_ok() && matches!(timeout(CATCH_UP_MAX, self.round(1)).await, Ok(Ok(())))
    }

    async fn round(&self, round: u64) -> DbResult<()> {
        // First, as the database may be away.
        self.end_expired();
        // Before the reading: what changes while it goes on is read again in the next round.
        let (began, since) = (self.now(), self.known.read().seen);
        let since = since.saturating_sub(CLOCKS_APART_MS).max(0);
        self.bind_connections(since == 0).await?;
        let ends = self.known.read().ends;
        let changed = self.store.changed(since).await?;
        self.report_elsewhere(&changed);
        self.learn_unless_old(changed, Some(ends));
        self.store.access(since).await?.into_iter().for_each(|access| self.accept(access));
        self.known.write().seen = began;
        self.known.write().is_loaded = true;
        self.store_uses().await?;
        self.read_spent(round).await
    }

    async fn forget(&self, now: i64) -> DbResult<()> {
        let before = now - FORGET_AFTER_MS;
        self.store.forget(before).await?;
        // By what is known here: another server may have removed them from the database.
        self.known.write().remove_ended(before);
        Ok(())
    }

    fn end_expired(&self) {
        let now = self.now();
        for token in self.known.read().tokens.values().filter(|token| !token.record.is_valid(now)) {
            self.end(token);
        }
        let expired = self.known.read().access.expired(now);
        for token in expired {
            let removed = self.known.write().access.remove(&token);
            if let Some(token) = removed.and_then(|access| access.acts_as) {
                token.expired().cancel();
            }
        }
    }

    async fn store_uses(&self) -> DbResult<()> {
        let not_stored = |token: &Arc<Token>| {
            let used = token.used.load(Ordering::Relaxed);
            (used != token.stored.load(Ordering::Relaxed)).then_some((token.record.id, used))
        };
        let mut used: Vec<_> = self.known.read().tokens.values().filter_map(not_stored).collect();
        if used.is_empty() {
            return Ok(());
        }
        // Ordered, so that servers that write at once do not wait for each other in a circle.
        used.sort_unstable();
        self.store.used(&used).await?;
        // Only now: a round that fails, or is given up, leaves them to the next one.
        let known = self.known.read();
        for (id, used) in used {
            if let Some(token) = known.by_id(id) {
                token.stored.store(used, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Takes what the database says about tokens.
    pub fn learn(&self, records: Vec<TokenRecord>) {
        self.learn_unless_old(records, None);
    }

    /// The same for what was read after so many ends. If there was another one since, what it ended stays so: the next
    /// reading says whether a subject was allowed again.
    pub(super) fn learn_unless_old(&self, mut records: Vec<TokenRecord>, ends: Option<u64>) {
        let changes: Vec<_> = records.iter().map(|record| (record.id, record.revoked_unix_ms.is_some())).collect();
        let mut known = self.known.write();
        let is_old = ends.is_some_and(|ends| ends != known.ends);
        // A parent comes before those that share what it may spend.
        records.sort_by_key(|record| record.parent.is_some());
        for mut record in records {
            // By the settings of now, and not of when the subject was first seen.
            if let Some(limits) = self.of_subjects.get().filter(|_| record.is_subject() || record.is_of_person()) {
                record.grant.limits = *limits;
            }
            match known.tokens.get(&record.digest) {
                Some(token) if token.record.revoked_unix_ms == record.revoked_unix_ms => {}
                // It was read from the database before it was revoked here.
                Some(_) if record.revoked_unix_ms.is_none() && (is_old || !record.is_subject()) => {}
                Some(token) if record.revoked_unix_ms.is_none() => {
                    let (digest, token) = (record.digest, token.restored(record));
                    // Tokens that were accepted before have ended with it, and are verified again.
                    known.access.remove_of(digest);
                    known.add(token);
                }
                Some(token) => {
                    let token = token.replaced(record);
                    self.end(&token);
                    known.ends += 1;
                    known.add(token);
                }
                None => {
                    known.ends += u64::from(record.revoked_unix_ms.is_some());
                    let spent = known.shared(&record).unwrap_or_default();
                    known.add(Token::new(record, spent));
                }
            }
        }
        self.follower.settled(&changes);
    }
}

#[cfg(test)]
mod tests;
