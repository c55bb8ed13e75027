//! Changes of tokens by other processes, as the command line's, which writes no audit log: the server that reads them
//! from the database records them.

use std::{
    collections::HashSet,
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;

use super::{Known, Tokens};
use crate::{
    domain::{id::TokenId, owner::Principal, token::TokenRecord},
    ports::observer::{AdminAction, AdminFacts, Observer, SignInFacts},
};

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
    fn found<'a>(
        &self,
        known: &Known,
        records: &'a [TokenRecord],
    ) -> impl Iterator<Item = (AdminAction, &'a TokenRecord)> {
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
        records.iter().filter_map(of).collect::<Vec<_>>().into_iter()
    }
}

impl Tokens {
    /// Reports changes by other processes from now on. To be called once.
    pub fn report_to(&self, observer: &Arc<dyn Observer>) {
        drop(self.follower.observer.set(Arc::clone(observer)));
    }

    /// Reports a connection that ended at the start.
    pub(super) fn report_ended(&self, connection: TokenId) {
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
}

#[cfg(test)]
mod tests;
