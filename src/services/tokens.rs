//! Authentication: maps a bearer token to its owner and what it may do, and delays the answers to wrong ones.
//!
//! Every token is in memory, so a request never waits for the database. [`Tokens::follow`] reads what changed there.
//!
//! ```text
//! follow ── one task: changes of other processes, last uses, tokens that ended long ago
//! ```

mod elsewhere;
mod follow;
mod issue;
mod subject;
mod token;

use std::{
    collections::HashMap,
    net::IpAddr,
    num::NonZeroU32,
    sync::{Arc, OnceLock, Weak, atomic::AtomicI64},
    time::Duration,
};

use futures_util::{Stream, StreamExt as _};
use governor::{
    DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter,
    clock::{Clock as _, DefaultClock},
};
use parking_lot::{Mutex, RwLock};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use tokio::sync::broadcast;
use tokio_stream::wrappers::BroadcastStream;

use self::token::{AccessTokens, Spent};
pub use self::{
    issue::{NewToken, random_secret},
    token::{Started, Token},
};
use crate::{
    domain::{Clock, Failure, Grant, InstanceId, Language, Principal, TokenDigest, TokenId, TokenLimits, TokenRecord},
    ports::database::TokenStore,
};

/// Wrong tokens that are answered without delay, at once and a minute: of one address, and of all.
const WRONG_OF_ADDRESS: (u32, u32) = (10, 30);
const WRONG_OF_ALL: (u32, u32) = (100, 300);
/// How often a second the database is asked for tokens that are not known.
const CATCHES_UP: NonZeroU32 = NonZeroU32::new(5).expect("not 0");
/// How long a request with such a token waits for it: a client may forget a token that is refused once.
const CATCH_UP_MAX: Duration = Duration::from_secs(2);
/// The longest delay.
const DELAY_MAX: Duration = Duration::from_secs(2);
/// Addresses that are remembered; more count as one.
const ADDRESSES_MAX: usize = 4096;

/// Ends of tokens that a receiver may be behind.
const ENDS_MAX: usize = 1024;

/// Who sends a request: an owner, and the token that proves it.
#[derive(Debug, Clone)]
pub struct Caller {
    pub owner: Principal,
    pub token: Arc<Token>,
}

/// The accepted tokens, and how often wrong ones came.
pub struct Tokens {
    known: RwLock<Known>,
    store: Arc<dyn TokenStore>,
    clock: Arc<dyn Clock>,
    ends: broadcast::Sender<TokenId>,
    wrong: DefaultDirectRateLimiter,
    wrong_of: DefaultKeyedRateLimiter<Option<IpAddr>>,
    follower: elsewhere::ChangeFollower,
    configured: OnceLock<elsewhere::Ids>,
    of_subjects: OnceLock<TokenLimits>,
    /// This server, where what others spent counts too.
    instance: OnceLock<InstanceId>,
    /// The runs of this process began at this moment or later, in unix milliseconds: when it began, or earlier where
    /// the clock was set back since.
    own_since: AtomicI64,
    catches_up: DefaultDirectRateLimiter,
    /// When this process began, in unix milliseconds.
    began: i64,
}

/// By digest: a lookup compares digests of what was sent, so its duration reveals nothing about any token.
#[derive(Default)]
struct Known {
    tokens: HashMap<TokenDigest, Arc<Token>>,
    /// The digests of the same tokens.
    ids: HashMap<TokenId, TokenDigest>,
    /// What the connections of each person share, while there are some.
    persons: HashMap<Principal, Weak<Mutex<Spent>>>,
    access: AccessTokens,
    /// When a change was last seen in the store, in unix milliseconds.
    seen: i64,
    /// Ends that were learned: what was read before the last one may be old.
    ends: u64,
    /// Whether the store was read.
    is_loaded: bool,
}

impl Known {
    fn by_id(&self, id: TokenId) -> Option<&Arc<Token>> {
        self.ids.get(&id).and_then(|digest| self.tokens.get(digest))
    }

    /// What a token that comes shares with the one that it was made with, or with other connections of its person.
    fn shared(&self, record: &TokenRecord) -> Option<Arc<Mutex<Spent>>> {
        match record.parent {
            Some(parent) => self.by_id(parent).map(|token| Arc::clone(&token.spent)),
            None => self.persons.get(&record.owner).filter(|_| record.is_of_person())?.upgrade(),
        }
    }

    fn add(&mut self, token: Token) {
        self.ids.insert(token.record.id, token.record.digest);
        if token.record.is_of_person() {
            self.persons.insert(token.record.owner.clone(), Arc::downgrade(&token.spent));
        }
        self.tokens.insert(token.record.digest, Arc::new(token));
    }

    fn remove(&mut self, digest: &TokenDigest) {
        if let Some(token) = self.tokens.remove(digest) {
            self.ids.remove(&token.record.id);
        }
    }

    /// As the database does: a subject that was refused stays refused.
    fn remove_ended(&mut self, before: i64) {
        let is_one = |token: &TokenRecord| token.ended_before(before) && !token.is_subject();
        let ended = self.tokens.values().filter(|token| is_one(&token.record));
        for digest in ended.map(|token| token.record.digest).collect::<Vec<_>>() {
            self.remove(&digest);
        }
        self.persons.retain(|_, spent| spent.strong_count() > 0);
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tokens(…)")
    }
}

impl Tokens {
    /// With the configured token, which is the owner `default` and may do everything.
    pub fn new(configured: &SecretString, store: Arc<dyn TokenStore>, clock: Arc<dyn Clock>) -> Self {
        let digest = digest(configured.expose_secret().as_bytes());
        let record = TokenRecord { name: "MCP_API_TOKEN".to_owned(), digest, ..blank_record() };
        let mut known = Known::default();
        known.add(Token::new(record, Arc::default()));
        let began = clock.unix_ms();
        Self {
            known: RwLock::new(known),
            store,
            clock,
            ends: broadcast::Sender::new(ENDS_MAX),
            wrong: RateLimiter::direct(quota(WRONG_OF_ALL)),
            wrong_of: RateLimiter::keyed(quota(WRONG_OF_ADDRESS)),
            follower: elsewhere::ChangeFollower::default(),
            configured: OnceLock::new(),
            of_subjects: OnceLock::new(),
            instance: OnceLock::new(),
            own_since: began.into(),
            catches_up: RateLimiter::direct(Quota::per_second(CATCHES_UP)),
            began,
        }
    }

    /// Counts a wrong token. The answer to it is due after this time.
    pub fn refused(&self, from: IpAddr) -> Duration {
        if self.wrong_of.len() >= ADDRESSES_MAX {
            self.wrong_of.retain_recent();
        }
        let from = (self.wrong_of.len() < ADDRESSES_MAX).then_some(from);
        let now = DefaultClock::default().now();
        let refusals = [self.wrong_of.check_key(&from).err(), self.wrong.check().err()];
        let delay = refusals.iter().flatten().map(|until| until.wait_time_from(now)).max();
        delay.unwrap_or_default().min(DELAY_MAX)
    }

    /// Who a token stands for; `None` for an unknown, revoked or expired one.
    pub fn caller(&self, token: &[u8]) -> Option<Caller> {
        let now = self.now();
        let access = self.known.read().access.valid(&digest(token), now).cloned();
        let Some(access) = access else { return self.caller_by_own(token) };
        let caller = self.of(access.connection, TokenRecord::is_connection)?;
        Some(match access.acts_as {
            Some(token) => Caller { owner: token.record.owner.by(token.record.id), token },
            None => caller,
        })
    }

    /// The same for a token that was made for a person: none that a client got by signing in, and no text that has the
    /// digest of a subject of an issuer, which is made of names that are no secret.
    pub fn caller_by_own(&self, token: &[u8]) -> Option<Caller> {
        self.of(digest(token), |record| !record.is_connection())
    }

    fn of(&self, digest: TokenDigest, is_wanted: fn(&TokenRecord) -> bool) -> Option<Caller> {
        let token = self.known.read().tokens.get(&digest).filter(|token| is_wanted(&token.record)).map(Arc::clone)?;
        let now = self.now();
        if !token.record.is_valid(now) {
            self.end(&token);
            return None;
        }
        let token = self.valid_again(token)?;
        token.touch(now);
        let owner = &token.record.owner;
        let owner = if token.is_configured() { owner.clone() } else { owner.by(token.record.id) };
        Some(Caller { owner, token })
    }

    /// A valid token, as one that opens things. It may have ended by a clock that was ahead and is right again.
    fn valid_again(&self, token: Arc<Token>) -> Option<Arc<Token>> {
        if !token.ended().is_cancelled() {
            return Some(token);
        }
        let mut known = self.known.write();
        // Meanwhile it may have been revoked, or another request was first.
        let ended = known.tokens.get(&token.record.digest).filter(|token| token.record.is_valid(self.now()))?;
        if ended.ended().is_cancelled() {
            let restored = ended.restored(ended.record.clone());
            known.add(restored);
        }
        known.tokens.get(&token.record.digest).cloned()
    }

    /// Whose a token is or was; `None` for one that this process does not know.
    pub fn owner_of(&self, id: TokenId) -> Option<Principal> {
        self.known.read().by_id(id).map(|token| token.record.owner.clone())
    }

    /// Counts a program or a cell of an owner that came by one of the tokens; `None` where it came by none.
    ///
    /// # Errors
    /// Those of [`Self::check`] and [`Token::begin`].
    pub fn begin(&self, who: &Principal, language: &Language) -> Result<Option<Started>, Failure> {
        self.used(who, language)?.as_ref().map(Token::begin).transpose()
    }

    /// The same for one within another one of the same token that is under way: both are one of those at once.
    ///
    /// # Errors
    /// Those of [`Self::begin`].
    pub fn begin_within(&self, who: &Principal, language: &Language) -> Result<Option<Started>, Failure> {
        self.used(who, language)?.as_ref().map(Token::begin_within).transpose()
    }

    /// The token that an owner came by, which is used now.
    fn used(&self, who: &Principal, language: &Language) -> Result<Option<Arc<Token>>, Failure> {
        let token = self.usable(who, language)?;
        if let Some(token) = &token {
            token.touch(self.now());
        }
        Ok(token)
    }

    /// Whether the token that an owner came by may still run programs of a language. No use of the token.
    ///
    /// # Errors
    /// [`Unauthorized`](crate::domain::error::Code::Unauthorized) when the token has ended since; those of
    /// [`Token::check_language`].
    pub fn check(&self, who: &Principal, language: &Language) -> Result<(), Failure> {
        self.usable(who, language).map(drop)
    }

    fn usable(&self, who: &Principal, language: &Language) -> Result<Option<Arc<Token>>, Failure> {
        let Some(id) = who.token() else { return Ok(None) };
        let token = self.known.read().by_id(id).cloned();
        let token = token.filter(|token| token.record.is_valid(self.now())).ok_or_else(token::ended)?;
        token.check_language(language)?;
        Ok(Some(token))
    }

    /// The network policies that the token of a request names; `None` where it names none. For a token that is not
    /// known any more no policy holds.
    pub fn network_of(&self, who: &Principal) -> Option<Vec<String>> {
        let id = who.token()?;
        self.known.read().by_id(id).map_or_else(|| Some(Vec::new()), |token| token.record.grant.network.clone())
    }

    /// The tokens that end from now on. A reader that more ends have overtaken than are kept gets every token that has
    /// ended, since what it opened may still be there.
    pub fn ends(self: &Arc<Self>) -> impl Stream<Item = Vec<TokenId>> + Unpin + use<> {
        let tokens = Arc::clone(self);
        BroadcastStream::new(self.ends.subscribe()).map(move |end| end.map_or_else(|_| tokens.ended(), |id| vec![id]))
    }

    /// The tokens that are known and not valid any more.
    fn ended(&self) -> Vec<TokenId> {
        let (known, now) = (self.known.read(), self.now());
        known.tokens.values().filter(|token| !token.record.is_valid(now)).map(|token| token.record.id).collect()
    }

    fn end(&self, token: &Token) {
        if !token.ended().is_cancelled() {
            token.ended().cancel();
            // There may be no receiver.
            let _ = self.ends.send(token.record.id);
        }
    }

    /// Parses the value of an `Authorization` header (RFC 6750): the scheme in any case, one or more spaces, the token.
    pub fn authorize(&self, header: &[u8]) -> Option<Caller> {
        let split = header.iter().position(|&b| b == b' ')?;
        let (scheme, rest) = header.split_at(split);
        let token = rest.trim_ascii();
        (scheme.eq_ignore_ascii_case(b"bearer") && !token.is_empty()).then(|| self.caller(token)).flatten()
    }

    /// Unix milliseconds.
    fn now(&self) -> i64 {
        self.clock.unix_ms()
    }
}

/// So many at once, and a minute.
pub(super) fn quota((burst, a_minute): (u32, u32)) -> Quota {
    let at_least_1 = |n| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
    Quota::per_minute(at_least_1(a_minute)).allow_burst(at_least_1(burst))
}

/// The form in which tokens are stored: SHA-256.
pub fn digest(token: &[u8]) -> TokenDigest {
    Sha256::digest(token).into()
}

/// A record of the owner `default` without a name or limits, unused, and valid until it is revoked.
pub fn blank_record() -> TokenRecord {
    TokenRecord {
        id: TokenId::new(),
        owner: Principal::default(),
        name: String::new(),
        prefix: String::new(),
        digest: [0; 32],
        grant: Grant::default(),
        parent: None,
        created_unix_ms: 0,
        expires_unix_ms: None,
        used_unix_ms: None,
        revoked_unix_ms: None,
    }
}

#[cfg(test)]
pub(crate) use self::tests::no_database;

#[cfg(test)]
mod tests;
