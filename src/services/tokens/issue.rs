//! Makes, lists and revokes tokens.

use std::sync::atomic::Ordering;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use secrecy::{ExposeSecret, SecretString};
use uuid::Uuid;

use super::{Token, Tokens, digest, token::Access};
use crate::{
    domain::{
        Code, Failure, Grant, Principal, TokenId, TokenRecord,
        token::{AccessRecord, CONNECTION_MARK, NAME_CHARS_MAX, POLICIES_MAX, PREFIX_CHARS, TOKEN_MARK},
    },
    ports::database::in_time,
};

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
    /// A name, policies or an expiry that cannot be; [`Code::DatabaseUnavailable`].
    pub async fn create(&self, new: NewToken) -> Result<(TokenRecord, SecretString), Failure> {
        let (record, secret) = self.draft(new, TOKEN_MARK)?;
        in_time(self.store.insert(&record)).await?;
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
        if new.grant.network.as_ref().is_some_and(|names| names.len() > POLICIES_MAX) {
            return Err(Failure::argument("network", format!("name at most {POLICIES_MAX} policies")));
        }
        if new.expires_unix_ms.is_some_and(|end| end <= now) {
            return Err(Failure::argument("expires", "it has passed"));
        }
        // As policies are named, whatever the case that an operator wrote.
        let network = new.grant.network.map(|names| names.iter().map(|name| name.to_ascii_lowercase()).collect());
        let secret = random_secret(mark);
        let record = TokenRecord {
            owner: new.owner,
            name: new.name,
            prefix: secret.expose_secret()[..PREFIX_CHARS].to_owned(),
            digest: digest(secret.expose_secret().as_bytes()),
            grant: Grant { network, ..new.grant },
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
        let mut all = in_time(self.store.changed(0)).await?;
        all.retain(|token| owner.is_none_or(|owner| token.owner == *owner));
        all.sort_by_key(|token| std::cmp::Reverse((token.created_unix_ms, token.id)));
        for token in &mut all {
            if let Some(live) = self.known.read().tokens.get(&token.digest) {
                // The database has later uses at other servers; those of the last second are known here alone.
                let used = Some(live.used.load(Ordering::Relaxed)).filter(|used| *used > 0);
                token.used_unix_ms = token.used_unix_ms.max(used);
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
        let last_use = |token: &Token| token.used.load(Ordering::Relaxed).max(token.record.created_unix_ms);
        let known = self.known.read();
        let of_owner = known.tokens.values().filter(|token| is_one(&token.record));
        let mut all: Vec<_> = of_owner.map(|token| (last_use(token), token.record.id)).collect();
        all.sort_unstable();
        all.truncate(all.len().saturating_sub(count));
        all.into_iter().map(|(_, id)| id).collect()
    }

    /// Revokes a token and those that came from it: what they opened ends now.
    ///
    /// # Errors
    /// [`Code::TokenNotFound`], [`Code::DatabaseUnavailable`].
    pub async fn revoke(&self, id: TokenId) -> Result<(), Failure> {
        self.follower.own(id, true);
        let Some(revoked) = in_time(self.store.revoke(&id, self.now())).await? else {
            self.follower.settled(&[(id, true)]);
            let why = "There is no such token, or it was revoked before.";
            return Err(Failure::new(Code::TokenNotFound, why));
        };
        // One of them may be stored and not known yet: it must not be taken for valid afterwards.
        self.learn(revoked);
        Ok(())
    }

    /// The moment so many seconds from now, in unix milliseconds.
    pub fn in_seconds(&self, seconds: u64) -> i64 {
        self.now().saturating_add(i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1000))
    }
}

/// 256 random bits behind a mark.
pub fn random_secret(mark: &str) -> SecretString {
    // Version 4 has 122 random bits of the operating system, so four of them have more than 256.
    let random: Vec<u8> = (0..4).flat_map(|_| Uuid::new_v4().into_bytes()).collect();
    format!("{mark}{}", BASE64_URL_SAFE_NO_PAD.encode(digest(&random))).into()
}
