//! Makes, lists and revokes tokens, and keeps those in memory consistent with the database.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use secrecy::{ExposeSecret, SecretString};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;
use uuid::Uuid;

use super::{CATCH_UP_MAX, Token, Tokens, access::Access, digest};
use crate::{
    domain::{
        clock::StepWatch,
        error::{Code, Failure},
        id::TokenId,
        owner::Principal,
        token::{AccessRecord, CONNECTION_MARK, Grant, NAME_CHARS_MAX, PREFIX_CHARS, TOKEN_MARK, TokenRecord},
    },
    ports::database::{DatabaseError, ROUND_MAX, TokenStore, no_database, within},
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
const FORGET_AFTER_MS: i64 = 30 * 24 * 3600 * 1000;

/// A token to be made.
#[derive(Debug, Clone)]
pub struct NewToken {
    pub owner: Principal,
    pub name: String,
    pub grant: Grant,
    pub expires_unix_ms: Option<i64>,
    /// The token that it comes from, and ends with.
    pub parent: Option<TokenId>,
}

impl Tokens {
    /// Makes a token. It is shown once: only its digest is stored.
    ///
    /// # Errors
    /// A name or an expiry that cannot be; [`Code::DatabaseUnavailable`].
    pub async fn create(&self, new: NewToken) -> Result<(TokenRecord, SecretString), Failure> {
        let store = self.store()?;
        let (record, secret) = self.draft(new, TOKEN_MARK)?;
        store.insert(&record).await?;
        self.learn(vec![record.clone()]);
        Ok((record, secret))
    }

    /// The token of a client that signs in, which the caller stores and hands to [`Self::learn`]. Its text is dropped:
    /// the client gets access tokens, see [`Self::accept`], and what it opened with one goes on with the next.
    ///
    /// # Errors
    /// A name or an expiry that cannot be.
    pub fn new_connection(&self, new: NewToken) -> Result<TokenRecord, Failure> {
        self.draft(new, CONNECTION_MARK).map(|(record, _)| record)
    }

    /// From now on accepts an access token, which the caller has stored.
    pub fn accept(&self, access: AccessRecord) {
        let AccessRecord { digest, connection, expires_unix_ms } = access;
        self.known.write().access.insert(digest, Access { connection, expires_unix_ms, acts_as: None });
    }

    fn draft(&self, new: NewToken, mark: &str) -> Result<(TokenRecord, SecretString), Failure> {
        let now = self.now();
        if new.name.is_empty() || new.name.chars().count() > NAME_CHARS_MAX || new.name.contains(char::is_control) {
            let why = format!("it must have 1 to {NAME_CHARS_MAX} characters, and no control characters");
            return Err(Failure::argument("name", why));
        }
        if new.grant.scopes.is_empty() {
            return Err(Failure::argument("scopes", "name at least one of run, files, approve, admin"));
        }
        if new.expires_unix_ms.is_some_and(|end| end <= now) {
            return Err(Failure::argument("expires", "it has passed"));
        }
        let secret = fresh(mark);
        let record = TokenRecord {
            id: TokenId::new(),
            owner: new.owner,
            name: new.name,
            prefix: secret.expose_secret()[..PREFIX_CHARS].to_owned(),
            digest: digest(secret.expose_secret().as_bytes()),
            grant: new.grant,
            parent: new.parent,
            created_unix_ms: now,
            expires_unix_ms: new.expires_unix_ms,
            ..super::blank_record()
        };
        self.follower.own(record.id, false);
        Ok((record, secret))
    }

    /// The tokens that are stored, newest first; those of an owner, or all.
    ///
    /// # Errors
    /// [`Code::DatabaseUnavailable`].
    pub async fn list(&self, owner: Option<&Principal>) -> Result<Vec<TokenRecord>, Failure> {
        let mut all = self.store()?.changed(0).await?;
        all.retain(|token| owner.is_none_or(|owner| token.owner == *owner));
        all.sort_by_key(|token| std::cmp::Reverse((token.created_unix_ms, token.id)));
        for token in &mut all {
            if let Some(live) = self.known.read().tokens.get(&token.digest) {
                token.used_unix_ms = Some(live.used.load(Ordering::Relaxed)).filter(|used| *used > 0);
            }
        }
        Ok(all)
    }

    /// The valid connections of an owner beyond so many, those that this server saw used least lately.
    pub fn connections_beyond(&self, count: usize, owner: &Principal) -> Vec<TokenId> {
        let now = self.now();
        let is_one = |token: &TokenRecord| {
            token.owner == *owner && token.is_connection() && !token.is_subject() && token.is_valid(now)
        };
        let mut all: Vec<_> = self
            .known
            .read()
            .tokens
            .values()
            .filter(|token| is_one(&token.record))
            .map(|token| (token.used.load(Ordering::Relaxed).max(token.record.created_unix_ms), token.record.id))
            .collect();
        all.sort_unstable();
        all.truncate(all.len().saturating_sub(count));
        all.into_iter().map(|(_, id)| id).collect()
    }

    /// Revokes a token and those that came from it: what they opened ends now.
    ///
    /// # Errors
    /// [`Code::TokenNotFound`], [`Code::DatabaseUnavailable`].
    pub async fn revoke(&self, id: TokenId) -> Result<(), Failure> {
        let (store, now) = (self.store()?, self.now());
        self.follower.own(id, true);
        let revoked = store.revoke(&id, now).await?;
        if revoked.is_empty() {
            self.follower.settled(&[(id, true)]);
            let why = "There is no such token, or it was revoked before.";
            return Err(Failure::new(Code::TokenNotFound, why));
        }
        let known: Vec<_> = {
            let known = self.known.read();
            revoked.iter().filter_map(|id| known.by_id(*id)).map(|token| token.record.clone()).collect()
        };
        // One of them may be stored and not known yet: it must not be taken for valid afterwards.
        let unknown =
            if known.len() < revoked.len() { store.changed(now).await.unwrap_or_default() } else { Vec::new() };
        let ended = known.into_iter().map(|token| TokenRecord { revoked_unix_ms: Some(now), ..token });
        let unknown = unknown.into_iter().filter(|token| revoked.contains(&token.id));
        self.learn(ended.chain(unknown).collect());
        Ok(())
    }

    /// The moment so many seconds from now, in unix milliseconds.
    pub fn in_seconds(&self, seconds: u64) -> i64 {
        self.now().saturating_add(i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1000))
    }

    /// Whether the tokens of the database are known. Before, a token that is not known may be one of them.
    pub fn is_loaded(&self) -> bool {
        self.store.is_none() || self.known.read().is_loaded
    }

    /// Reads the tokens of the database, if it answers.
    pub async fn load(&self) {
        let Some(store) = &self.store else { return };
        if let Err(error) = self.round(&**store, 0).await {
            warn!(%error, "the tokens of the database are not known yet");
        }
    }

    /// The same for all of them again, whenever they have changed by the clock of who changed them.
    pub async fn load_all(&self) {
        self.known.write().seen = 0;
        self.load().await;
    }

    /// Keeps the tokens in memory true to the database until `stop`.
    pub async fn follow(self: Arc<Self>, stop: CancellationToken) {
        let Some(store) = self.store.clone() else { return };
        let mut rounds = interval(FOLLOW_EVERY);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut round, mut is_away, steps) = (1_u64, false, StepWatch::default());
        loop {
            tokio::select! {
                _ = rounds.tick() => {}
                () = stop.cancelled() => break,
            }
            if round.is_multiple_of(READ_ALL_EVERY) {
                self.known.write().seen = 0;
            }
            let reading = within(ROUND_MAX, self.round(&*store, round));
            let Some(mut followed) = stop.run_until_cancelled(reading).await else { break };
            // After a step of the clock a token that is valid may look as if it ended long ago.
            let settled_ms = steps.settled_ms(self.clock.as_ref());
            if let Some(now) = settled_ms.filter(|_| followed.is_ok() && round.is_multiple_of(FORGET_EVERY)) {
                let forgetting = within(ROUND_MAX, self.forget(&*store, now));
                let Some(forgotten) = stop.run_until_cancelled(forgetting).await else { break };
                followed = forgotten;
            }
            if let (Err(error), false) = (&followed, is_away) {
                warn!(%error, "changes of tokens cannot be read: those that are known go on");
            }
            is_away = followed.is_err();
            round += u64::from(!is_away);
        }
        if let Err(error) = within(FLUSH_MAX, self.store_uses(&*store)).await {
            warn!(%error, "when tokens were last used could not be stored");
        }
    }

    /// Learns at once what other processes have changed, for a token that may be another server's newest. Whether it
    /// did: not more often than [`CATCHES_UP`], and not when the database takes long.
    pub async fn catch_up(&self) -> bool {
        let Some(store) = self.store.as_deref().filter(|_| self.catches_up.check().is_ok()) else { return false };
        matches!(timeout(CATCH_UP_MAX, self.round(store, 1)).await, Ok(Ok(())))
    }

    async fn round(&self, store: &dyn TokenStore, round: u64) -> Result<(), DatabaseError> {
        // First, as the database may be away.
        self.end_expired();
        // Before the reading: what changes while it goes on is read again in the next round.
        let (began, since) = (self.now(), self.known.read().seen);
        let since = since.saturating_sub(CLOCKS_APART_MS).max(0);
        self.bind_connections(store, since == 0).await?;
        let ends = self.known.read().ends;
        let changed = store.changed(since).await?;
        self.report_elsewhere(&changed);
        self.learn_unless_old(changed, Some(ends));
        store.access(since).await?.into_iter().for_each(|access| self.accept(access));
        self.known.write().seen = began;
        self.known.write().is_loaded = true;
        self.store_uses(store).await?;
        self.read_spent(store, round).await
    }

    async fn forget(&self, store: &dyn TokenStore, now: i64) -> Result<(), DatabaseError> {
        let before = now - FORGET_AFTER_MS;
        store.forget(before).await?;
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

    async fn store_uses(&self, store: &dyn TokenStore) -> Result<(), DatabaseError> {
        let mut used: Vec<_> = self
            .known
            .read()
            .tokens
            .values()
            .map(|token| (token, token.used.load(Ordering::Relaxed)))
            .filter(|(token, used)| *used != token.stored.load(Ordering::Relaxed))
            .map(|(token, used)| (token.record.id, used))
            .collect();
        if used.is_empty() {
            return Ok(());
        }
        // Ordered, so that servers that write at once do not wait for each other in a circle.
        used.sort_unstable();
        store.used(&used).await?;
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
                    let parent = record.parent.map_or_else(|| known.of_person(&record), |id| known.by_id(id));
                    let parent = parent.cloned();
                    known.add(Token::new(record, parent.as_ref()));
                }
            }
        }
        self.follower.settled(&changes);
    }

    pub(super) fn store(&self) -> Result<&Arc<dyn TokenStore>, Failure> {
        self.store.as_ref().ok_or_else(no_database)
    }
}

/// 256 random bits behind a mark.
pub fn fresh(mark: &str) -> SecretString {
    // Version 4 has 122 random bits of the operating system, so four of them have more than 256.
    let random: Vec<u8> = (0..4).flat_map(|_| Uuid::new_v4().into_bytes()).collect();
    format!("{mark}{}", BASE64_URL_SAFE_NO_PAD.encode(digest(&random))).into()
}

#[cfg(test)]
mod tests;
