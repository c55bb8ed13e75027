//! Tokens of another issuer: each of its subjects has a record here, which can be revoked, and the subject's tokens
//! refer to it until they expire.

use std::sync::Arc;

use super::{Tokens, token::Access};
use crate::{
    domain::{
        Code, Failure, Grant, Principal, Scope, TokenDigest, TokenId, TokenLimits, TokenRecord, token::SUBJECT_MARK,
    },
    ports::database::{DatabaseError, in_time},
};

/// Tokens of one subject that are known at once.
const ACCEPTED_OF_SUBJECT_MAX: usize = 256;

impl Tokens {
    /// How much each subject may do, and each person of an OpenID Connect provider. To be called once, before the first
    /// is known.
    pub fn limit_subjects(&self, limits: TokenLimits) {
        let _ = self.of_subjects.set(limits);
    }

    /// Whether a token is one that was accepted and has not expired.
    pub fn is_accepted(&self, token: &[u8]) -> bool {
        let now = self.now();
        self.known.read().access.valid(&super::digest(token), now).is_some()
    }

    /// Records a subject that was not seen before; `false` for one that was revoked.
    ///
    /// # Errors
    /// [`Code::DatabaseUnavailable`] for a subject that is not known.
    pub async fn know_subject(
        &self,
        key: TokenDigest,
        owner: &Principal,
        name: &str,
        scopes: &[Scope],
    ) -> Result<bool, Failure> {
        if let Some(token) = self.known.read().tokens.get(&key) {
            return Ok(token.record.is_valid(self.now()));
        }
        let ends = self.known.read().ends;
        let record = TokenRecord {
            owner: owner.clone(),
            name: name.to_owned(),
            prefix: SUBJECT_MARK.to_owned(),
            digest: key,
            grant: Grant { scopes: scopes.into(), ..Grant::default() },
            created_unix_ms: self.now(),
            ..super::blank_record()
        };
        let stored = match in_time(self.store.insert(&record)).await {
            Ok(()) => vec![record],
            // Another server, or another request, was first.
            Err(_) => in_time(self.store.changed(0)).await?,
        };
        self.learn_unless_old(stored, Some(ends));
        let known = self.known.read().tokens.get(&key).map(|token| token.record.is_valid(self.now()));
        known.ok_or_else(|| DatabaseError("a subject was not stored".to_owned()).into())
    }

    /// Takes the end of a subject back: its tokens are accepted again.
    ///
    /// # Errors
    /// [`Code::TokenNotFound`] when no such subject has ended, [`Code::DatabaseUnavailable`].
    pub async fn restore(&self, id: TokenId) -> Result<(), Failure> {
        if !in_time(self.store.restore(&id, self.now())).await? {
            return Err(Failure::new(Code::TokenNotFound, "There is no such subject that is refused."));
        }
        let known = self.known.read().by_id(id).map(|token| token.record.clone());
        self.learn(known.map(|record| TokenRecord { revoked_unix_ms: None, ..record }).into_iter().collect());
        Ok(())
    }

    /// From now on accepts a token of a subject, with what it may do and whose it is. Some issuers sign one for each
    /// request: beyond [`ACCEPTED_OF_SUBJECT_MAX`] the first to expire leaves, and is verified again when it comes.
    pub fn accept_as(
        &self,
        token: TokenDigest,
        subject: TokenDigest,
        expires_unix_ms: i64,
        owner: Principal,
        scopes: Vec<Scope>,
    ) {
        let now = self.now();
        let mut known = self.known.write();
        // Another request with it was first, and may have opened something.
        if known.access.valid(&token, now).is_some() {
            return;
        }
        let Some(of) = known.tokens.get(&subject).cloned() else { return };
        let held: Vec<_> = known.access.of(subject).collect();
        if let Some(first) = held.first().filter(|_| held.len() >= ACCEPTED_OF_SUBJECT_MAX)
            && let Some(Access { acts_as: Some(token), .. }) = known.access.remove(first)
        {
            // Nothing would end its streams later.
            token.expired().cancel();
        }
        let record = of.record.clone();
        let grant = Grant { scopes, ..record.grant.clone() };
        let acts_as = Some(Arc::new(of.with_record(TokenRecord { owner, grant, ..record })));
        known.access.insert(token, Access { connection: subject, expires_unix_ms, acts_as });
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{blank_record, digest},
        *,
    };
    use crate::domain::{Language, clock::ManualClock, token::CONNECTION_MARK};

    #[test]
    fn connections_of_one_person_share_the_limits_of_subjects() {
        let tokens = Tokens::unstored(Arc::new(ManualClock::at(1_800_000_000)));
        tokens.limit_subjects(TokenLimits { runs_per_minute: Some(2), ..TokenLimits::default() });
        let connection = |n: u8, owner: &str, parent: Option<TokenId>| TokenRecord {
            owner: owner.parse().expect("an owner"),
            digest: [n; 32],
            prefix: CONNECTION_MARK.to_owned(),
            parent,
            ..blank_record()
        };
        let of_token = connection(4, "ann", Some(TokenId::new()));
        let records = [connection(1, "ann", None), connection(2, "ann", None), connection(3, "bob", None), of_token];
        tokens.learn(records.to_vec());
        let language: Language = "python".parse().expect("a language");
        for (n, may) in [(0, true), (1, true), (0, false), (1, false), (2, true), (3, true), (3, true), (3, true)] {
            let begun = tokens.begin(&records[n].owner.by(records[n].id), &language);
            assert_eq!(begun.is_ok(), may, "{n}: {begun:?}");
        }

        // What is shared outlives the connection that had it first, and ends with the last one.
        tokens.known.write().remove(&[1; 32]);
        let third = connection(5, "ann", None);
        tokens.learn(vec![third.clone()]);
        assert!(tokens.begin(&third.owner.by(third.id), &language).is_err());
        for n in [2, 5] {
            tokens.known.write().remove(&[n; 32]);
        }
        let fourth = connection(6, "ann", None);
        tokens.learn(vec![fourth.clone()]);
        assert!(tokens.begin(&fourth.owner.by(fourth.id), &language).is_ok());
        assert_eq!(tokens.known.read().persons.len(), 2);
    }

    #[test]
    fn of_many_tokens_of_a_subject_the_first_to_expire_leaves_for_a_new_one() {
        let clock = Arc::new(ManualClock::at(1_800_000_000));
        let tokens = Tokens::unstored(clock);
        let subject = |n: u8| TokenRecord { digest: [n; 32], prefix: SUBJECT_MARK.to_owned(), ..blank_record() };
        tokens.learn(vec![subject(1), subject(2)]);
        let accept = |token: &str, subject: u8, lives_s: i64| {
            let expires_unix_ms = (1_800_000_000 + lives_s) * 1000;
            let owner = Principal::default();
            tokens.accept_as(digest(token.as_bytes()), [subject; 32], expires_unix_ms, owner, vec![Scope::Run]);
        };
        accept("of another", 2, 1);
        accept("first", 1, 2);
        let first = tokens.caller(b"first").expect("accepted").token;
        (1..ACCEPTED_OF_SUBJECT_MAX).for_each(|n| accept(&format!("number {n}"), 1, 10));
        assert!(tokens.is_accepted(b"first") && !first.expired().is_cancelled(), "there is room for all");
        accept("one more", 1, 5);
        assert!(!tokens.is_accepted(b"first") && first.expired().is_cancelled());
        for kept in ["of another", "one more", "number 1"] {
            assert!(tokens.is_accepted(kept.as_bytes()), "{kept}");
        }
    }
}
