//! What other servers do, and earlier processes of this one: tokens that they make and revoke, as the command line's
//! process does, which writes no audit log; connections that were made with another configured token; and what tokens
//! with limits of a day have spent there, read from the history every [`READ_EVERY`] rounds.
//!
//! The configured token has no record, so an id derived from it represents it: a connection that was made with it names
//! that id as its parent, and ends when a server starts with another token.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, OnceLock, atomic::Ordering},
};

use parking_lot::Mutex;
use secrecy::{ExposeSecret as _, SecretString};
use tracing::info;

use super::{Known, Token, Tokens};
use crate::{
    domain::{
        InstanceId, Principal, TokenId, TokenRecord,
        text::{mac, ms, whole},
        token::DAY,
    },
    ports::{
        database::DbResult,
        observer::{AdminAction, AdminFacts, Observer, SignInFacts},
    },
};

/// How long after the start connections are looked for that came from another configured token: a server that has it
/// may be about to end, and makes connections until then.
const BINDS_FOR_MS: i64 = 10 * 60 * 1000;

/// In rounds of [`Tokens::follow`].
const READ_EVERY: u64 = 10;

/// The changes of this process, and the observer of all others.
#[derive(Default)]
pub(super) struct ChangeFollower {
    observer: OnceLock<Arc<dyn Observer>>,
    own: Mutex<HashSet<(TokenId, bool)>>,
}

impl ChangeFollower {
    /// Before this process makes or revokes a token.
    pub(super) fn own(&self, id: TokenId, is_revoked: bool) {
        self.own.lock().insert((id, is_revoked));
    }

    /// Once changes are known they are not taken for another process's, so they need not be remembered any more.
    pub(super) fn settled(&self, changes: &[(TokenId, bool)]) {
        let mut own = self.own.lock();
        for change in changes {
            own.remove(change);
        }
    }

    /// The changes in the database that this process has neither made nor known.
    fn found<'a>(&self, known: &Known, records: &'a [TokenRecord]) -> Vec<(AdminAction, &'a TokenRecord)> {
        let own = self.own.lock();
        let of = |record: &'a TokenRecord| {
            let is_revoked = record.revoked_unix_ms.is_some();
            let was_revoked = known.by_id(record.id).map(|token| token.record.revoked_unix_ms.is_some());
            let action = match (was_revoked, is_revoked) {
                // A person of a provider, or a subject of an issuer, has signed in at another server.
                (None, false) if !record.is_connection() => AdminAction::TokenCreatedElsewhere,
                (Some(false), true) => AdminAction::TokenRevokedElsewhere,
                _ => return None,
            };
            // What comes from a token was not made by an operator.
            (record.parent.is_none() && !own.contains(&(record.id, is_revoked))).then_some((action, record))
        };
        records.iter().filter_map(of).collect()
    }
}

/// The ids that stand for the configured token: by the first key, and by keys that were the first before.
#[derive(Debug)]
pub(super) struct Ids {
    now: TokenId,
    before: Vec<TokenId>,
}

impl Tokens {
    /// Reports changes by other processes from now on. To be called once.
    pub fn report_to(&self, observer: &Arc<dyn Observer>) {
        drop(self.follower.observer.set(Arc::clone(observer)));
    }

    /// Reports a connection that ended at the start.
    fn report_ended(&self, connection: TokenId) {
        let Some(observer) = self.follower.observer.get() else { return };
        let at_unix_s = self.clock.unix_s();
        observer.signed_in(&SignInFacts { at_unix_s, step: "ended", client: "", connection: Some(connection) });
    }

    /// Reports changes that other processes made. To be called before [`Self::learn`].
    pub(super) fn report_elsewhere(&self, records: &[TokenRecord]) {
        let Some(observer) = self.follower.observer.get() else { return };
        let known = self.known.read();
        if !known.is_loaded {
            return;
        }
        for (action, record) in self.follower.found(&known, records) {
            let (by, subject) = (&Principal::default(), &record.id.to_string());
            let at_unix_s = self.clock.unix_s();
            observer.administered(&AdminFacts { at_unix_s, action, by, owner: Some(&record.owner), subject });
        }
    }

    /// From the next reading of the database on, connections that came from another configured token have ended. To be
    /// called once, before the first, and only where the token and the keys are those of all servers of the database.
    pub fn bind(&self, token: &SecretString, mut keys: impl Iterator<Item = SecretString>) {
        let Some(first) = keys.next() else { return };
        let before = keys.map(|key| id(token, &key)).collect();
        drop(self.configured.set(Ids { now: id(token, &first), before }));
    }

    /// What connections have as their parent that are made with the configured token; `None` where none is bound to it.
    pub fn configured_id(&self) -> Option<TokenId> {
        self.configured.get().map(|ids| ids.now)
    }

    /// Before the tokens of the database are known for the first time, so that none of an earlier token is accepted;
    /// for a while also when all are read again.
    pub(super) async fn bind_connections(&self, reads_all: bool) -> DbResult<()> {
        let is_young = self.now().saturating_sub(self.began) < BINDS_FOR_MS;
        let is_due = !self.known.read().is_loaded || (reads_all && is_young);
        let Some(ids) = self.configured.get().filter(|_| is_due) else { return Ok(()) };
        for connection in self.store.bind_connections(&ids.now, &ids.before, self.now()).await? {
            info!(%connection, "sign-in: the connection was made with another MCP_API_TOKEN, and has ended");
            self.report_ended(connection);
        }
        Ok(())
    }

    /// From now on also counts what runs used at other servers than this one, and before it began. To be called once.
    pub fn count_elsewhere(&self, instance: InstanceId) {
        let _ = self.instance.set(instance);
    }

    /// Reads it, in the rounds in which it is due.
    pub(super) async fn read_spent(&self, round: u64) -> DbResult<()> {
        let now = self.now();
        let own_since = self.own_since.fetch_min(now, Ordering::Relaxed).min(now);
        let Some(instance) = self.instance.get().filter(|_| round.is_multiple_of(READ_EVERY)) else {
            return Ok(());
        };
        let is_limited = |token: &&Arc<Token>| token.record.grant.limits.is_daily();
        let limited: Vec<_> = self.known.read().tokens.values().filter(is_limited).cloned().collect();
        if limited.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = limited.iter().map(|token| token.record.id).collect();
        let since = now.saturating_sub(whole(ms(DAY)));
        let spent: HashMap<_, _> = self.store.spent(&ids, since, (*instance, own_since)).await?.into_iter().collect();
        // By what tokens share: one and those that came from it.
        let mut sums: HashMap<_, (u64, u64)> = HashMap::new();
        for token in &limited {
            let (cpu_ms, bytes) = sums.entry(Arc::as_ptr(&token.spent)).or_default();
            let (more_cpu_ms, more_bytes) = spent.get(&token.record.id).copied().unwrap_or_default();
            *cpu_ms = cpu_ms.saturating_add(more_cpu_ms);
            *bytes = bytes.saturating_add(more_bytes);
        }
        for token in &limited {
            token.spent.lock().elsewhere = sums[&Arc::as_ptr(&token.spent)];
        }
        Ok(())
    }
}

/// With a key, because the token may be one that a person chose: the id alone is of no use for guessing it.
fn id(token: &SecretString, key: &SecretString) -> TokenId {
    let parts: [&[u8]; 2] = [b"configured token\0", token.expose_secret().as_bytes()];
    let mut digest = [0; 16];
    digest.copy_from_slice(&mac(key.expose_secret().as_bytes(), &parts)[..16]);
    TokenId::of_digest(digest)
}

#[cfg(test)]
mod tests;
