//! A token in use: whether it is still valid, and how much of its limits is left. And the access tokens, which stand
//! for one.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::domain::{
    Code, Failure, Figures, Language, Scope, TokenDigest, TokenLimits, TokenRecord, text::ms, token::DAY,
};

const MINUTE: Duration = Duration::from_mins(1);
/// What was spent is added up in so many parts of the day.
const PARTS: u32 = 96;

/// A token in use. What was spent is counted by this process since its start; of a day also what the history tells of
/// others. A clone is the same token, and may get another record.
#[derive(Debug, Clone)]
pub struct Token {
    pub record: TokenRecord,
    /// Ends what the token opened.
    ended: CancellationToken,
    /// Ends what it listens to.
    expired: CancellationToken,
    /// Unix milliseconds; 0 for never.
    pub(super) used: Arc<AtomicI64>,
    /// Which of them the database has.
    pub(super) stored: Arc<AtomicI64>,
    /// Shared with the tokens that came from it, so that signing in raises no limit.
    pub(super) spent: Arc<Mutex<Spent>>,
}

#[derive(Debug, Default)]
pub(super) struct Spent {
    at_once: u32,
    /// When those of the last minute began.
    begun: VecDeque<Instant>,
    /// Oldest first: the beginning of a part of the day, processor time in milliseconds, bytes.
    parts: VecDeque<(Instant, u64, u64)>,
    /// The use of a day at other servers and before the start: processor time in milliseconds, bytes.
    pub elsewhere: (u64, u64),
}

/// A program or cell that counts as under way for its token, until it is dropped.
#[derive(Debug)]
pub struct Started {
    token: Arc<Token>,
    /// Whether it is one of those at once; not where it began within another.
    is_counted: bool,
}

impl Token {
    pub(super) fn new(record: TokenRecord, spent: Arc<Mutex<Spent>>) -> Self {
        let used = record.used_unix_ms.unwrap_or_default();
        let (used, stored) = (Arc::new(used.into()), Arc::new(used.into()));
        let ended = CancellationToken::new();
        Self { record, expired: ended.child_token(), ended, used, stored, spent }
    }

    /// The same token with another record, such as one that is revoked.
    pub(super) fn replaced(&self, record: TokenRecord) -> Self {
        Self { record, ..self.clone() }
    }

    /// The same token with a record that is valid again. What it opened before has ended.
    pub(super) fn restored(&self, record: TokenRecord) -> Self {
        let ended = CancellationToken::new();
        Self { expired: ended.child_token(), ended, ..self.replaced(record) }
    }

    /// The same token with another record, for so long as a token of its issuer is valid.
    pub(super) fn with_record(&self, record: TokenRecord) -> Self {
        Self { expired: self.ended.child_token(), ..self.replaced(record) }
    }

    /// Whether it is that of the settings.
    pub fn is_configured(&self) -> bool {
        self.record.prefix.is_empty()
    }

    /// Ends when the token is revoked or has expired.
    pub fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Ends with [`Self::ended`], or when the token of an issuer has expired that stands for this one. What is under
    /// way goes on then, and streams and sockets end: the issuer renews the token or does not.
    pub fn expired(&self) -> &CancellationToken {
        &self.expired
    }

    /// # Errors
    /// [`Code::InsufficientScope`].
    pub fn check_scope(&self, scope: Scope) -> Result<(), Failure> {
        if self.record.grant.has(scope) {
            return Ok(());
        }
        let why = format!("This token may not do that: it lacks the scope `{}`.", scope.as_str());
        Err(Failure::new(Code::InsufficientScope, why))
    }

    /// # Errors
    /// [`Code::InsufficientScope`] where the token is for other languages.
    pub fn check_language(&self, language: &Language) -> Result<(), Failure> {
        if self.record.grant.allows(language) {
            return Ok(());
        }
        let allowed: Vec<_> = self.record.grant.languages.iter().map(Language::as_str).collect();
        let why = format!("language: this token is for {} only.", allowed.join(", "));
        Err(Failure::new(Code::InsufficientScope, why).about("language"))
    }

    /// Counts a program or a cell.
    ///
    /// # Errors
    /// [`Code::RateLimited`] when one of the token's limits is reached; the message says which and when to come back.
    pub fn begin(self: &Arc<Self>) -> Result<Started, Failure> {
        let limits = self.record.grant.limits;
        let mut spent = self.spent.lock();
        if let Some(limit) = limits.runs_at_once.filter(|limit| spent.at_once >= *limit) {
            return Err(refused(&format!("{limit} programs at once"), Duration::from_secs(1)));
        }
        spent.count(&limits)?;
        spent.at_once += 1;
        Ok(Started { token: Arc::clone(self), is_counted: true })
    }

    /// Counts a program or a cell within another one of this token that is under way: both are one of those at once.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn begin_within(self: &Arc<Self>) -> Result<Started, Failure> {
        self.spent.lock().count(&self.record.grant.limits)?;
        Ok(Started { token: Arc::clone(self), is_counted: false })
    }

    pub(super) fn touch(&self, now_unix_ms: i64) {
        self.used.store(now_unix_ms, Ordering::Relaxed);
    }
}

impl Started {
    /// Whether its token may still have something begun or kept for it.
    ///
    /// # Errors
    /// [`Code::Unauthorized`] when the token was revoked or has expired.
    pub fn check(&self) -> Result<(), Failure> {
        if self.token_ended().is_cancelled() { Err(ended()) } else { Ok(()) }
    }

    /// Ends when the token is revoked or has expired.
    pub fn token_ended(&self) -> &CancellationToken {
        self.token.ended()
    }

    /// Counts what it used, under this limit of CPU time per second.
    pub fn count(&self, figures: &Figures, cpu_millis: u32) {
        self.spend(figures.cpu_or_most(cpu_millis), figures.stdout_bytes + figures.stderr_bytes);
    }

    fn spend(&self, cpu: Duration, bytes: u64) {
        if !self.token.record.grant.limits.is_daily() {
            return;
        }
        let (now, cpu_ms) = (Instant::now(), ms(cpu));
        let mut spent = self.token.spent.lock();
        match spent.parts.back_mut() {
            Some((begin, cpu_of_part, bytes_of_part)) if now - *begin < DAY / PARTS => {
                *cpu_of_part = cpu_of_part.saturating_add(cpu_ms);
                *bytes_of_part = bytes_of_part.saturating_add(bytes);
            }
            _ => spent.parts.push_back((now, cpu_ms, bytes)),
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if self.is_counted {
            self.token.spent.lock().at_once -= 1;
        }
    }
}

impl Spent {
    fn forget(&mut self, now: Instant) {
        while self.begun.pop_front_if(|begun| now - *begun >= MINUTE).is_some() {}
        while self.parts.pop_front_if(|(begin, ..)| now - *begin >= DAY + DAY / PARTS).is_some() {}
    }

    /// Counts one that begins now.
    fn count(&mut self, limits: &TokenLimits) -> Result<(), Failure> {
        let now = Instant::now();
        self.forget(now);
        self.check(limits, now)?;
        if limits.runs_per_minute.is_some() {
            self.begun.push_back(now);
        }
        Ok(())
    }

    fn check(&self, limits: &TokenLimits, now: Instant) -> Result<(), Failure> {
        let is_reached = |limit: Option<u64>, spent: u64| limit.filter(|limit| spent >= *limit);
        if let Some(limit) = is_reached(limits.runs_per_minute.map(u64::from), self.begun.len() as u64) {
            let oldest = self.begun.front().map_or(Duration::ZERO, |begun| now - *begun);
            return Err(refused(&format!("{limit} programs a minute"), MINUTE.saturating_sub(oldest)));
        }
        let (cpu_ms, bytes) = self.parts.iter().fold(self.elsewhere, |(cpu, bytes), (_, more_cpu, more_bytes)| {
            (cpu.saturating_add(*more_cpu), bytes.saturating_add(*more_bytes))
        });
        // When others spent it is not known here, so the first time to come back is soon.
        let oldest = self.parts.front().map(|(begin, ..)| now - *begin);
        let left = if self.elsewhere == (0, 0) { DAY + DAY / PARTS } else { DAY / PARTS };
        let left = oldest.map_or(left, |oldest| (DAY + DAY / PARTS).saturating_sub(oldest).min(left));
        if let Some(limit) = is_reached(limits.cpu_s_per_day, cpu_ms / 1000) {
            return Err(refused(&format!("{limit} s of processor time a day"), left));
        }
        match is_reached(limits.bytes_per_day, bytes) {
            Some(limit) => Err(refused(&format!("{limit} bytes of output a day"), left)),
            None => Ok(()),
        }
    }
}

/// What an access token stands for.
#[derive(Debug, Clone)]
pub(super) struct Access {
    pub connection: TokenDigest,
    pub expires_unix_ms: i64,
    /// Where the token itself says whose it is and what it may do.
    pub acts_as: Option<Arc<Token>>,
}

/// The access tokens that are accepted, and those of each connection in the order of their ends: to accept one takes as
/// long however many there are, since every request waits for it.
#[derive(Default)]
pub(super) struct AccessTokens {
    known: HashMap<TokenDigest, Access>,
    /// The connection, the end and the digest of each.
    ordered: BTreeSet<(TokenDigest, i64, TokenDigest)>,
}

impl AccessTokens {
    pub fn valid(&self, token: &TokenDigest, now: i64) -> Option<&Access> {
        self.known.get(token).filter(|access| now < access.expires_unix_ms)
    }

    pub fn insert(&mut self, token: TokenDigest, access: Access) {
        self.remove(&token);
        self.ordered.insert((access.connection, access.expires_unix_ms, token));
        self.known.insert(token, access);
    }

    pub fn remove(&mut self, token: &TokenDigest) -> Option<Access> {
        let access = self.known.remove(token)?;
        self.ordered.remove(&(access.connection, access.expires_unix_ms, *token));
        Some(access)
    }

    /// Those of a connection, the first to expire first.
    pub fn of(&self, connection: TokenDigest) -> impl Iterator<Item = TokenDigest> {
        let (first, last) = ((connection, i64::MIN, [0; 32]), (connection, i64::MAX, [u8::MAX; 32]));
        self.ordered.range(first..=last).map(|(.., token)| *token)
    }

    pub fn remove_of(&mut self, connection: TokenDigest) {
        let tokens: Vec<_> = self.of(connection).collect();
        for token in tokens {
            self.remove(&token);
        }
    }

    pub fn expired(&self, now: i64) -> Vec<TokenDigest> {
        let expired = self.known.iter().filter(|(_, access)| access.expires_unix_ms <= now);
        expired.map(|(token, _)| *token).collect()
    }
}

/// The failure of what came by a token that has ended.
pub(super) fn ended() -> Failure {
    Failure::new(Code::Unauthorized, "The token of this request was revoked or has expired.")
}

fn refused(limit: &str, left: Duration) -> Failure {
    let wait_s = left.as_secs() + 1;
    let why = format!("This token has reached its limit of {limit}: try again in {wait_s} s.");
    Failure::new(Code::RateLimited, why).retry_after(wait_s)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::domain::Grant;

    fn token(limits: TokenLimits) -> Arc<Token> {
        let grant = Grant { limits, ..Grant::default() };
        Arc::new(Token::new(TokenRecord { grant, ..super::super::blank_record() }, Arc::default()))
    }

    fn is_refused(token: &Arc<Token>, word: &str) -> u64 {
        let failure = token.begin().map(drop).expect_err(word);
        assert!(failure.code == Code::RateLimited && failure.message.contains(word), "{failure:?}");
        failure.retry_after_s.expect("a time")
    }

    #[tokio::test(start_paused = true)]
    async fn programs_at_once_and_a_minute_are_limited() {
        let two = token(TokenLimits { runs_at_once: Some(2), ..TokenLimits::default() });
        let (one, _other) = (two.begin().expect("a permit"), two.begin().expect("a permit"));
        assert_eq!(is_refused(&two, "2 programs at once"), 2);
        drop(one);
        drop(two.begin().expect("a permit"));

        let one = token(TokenLimits { runs_at_once: Some(1), runs_per_minute: Some(2), ..TokenLimits::default() });
        let first = one.begin().expect("a permit");
        drop(one.begin_within().expect("at once they are one"));
        assert_eq!(is_refused(&one, "1 programs at once"), 2, "the first has its permit");
        let failure = one.begin_within().map(drop).expect_err("a third within a minute");
        assert!(failure.message.contains("2 programs a minute"), "{failure:?}");
        drop(first);
        assert!(is_refused(&one, "2 programs a minute") > 1);

        let three = token(TokenLimits { runs_per_minute: Some(3), ..TokenLimits::default() });
        (0..3).for_each(|_| drop(three.begin().expect("a permit")));
        advance(Duration::from_secs(20)).await;
        let wait = is_refused(&three, "3 programs a minute");
        advance(Duration::from_secs(wait)).await;
        drop(three.begin().expect("after the time that was reported"));
    }

    #[tokio::test(start_paused = true)]
    async fn processor_time_and_bytes_of_a_day_are_limited_and_come_back() {
        let limits = TokenLimits { cpu_s_per_day: Some(10), bytes_per_day: Some(1000), ..TokenLimits::default() };
        let limited = token(limits);
        limited.begin().expect("a permit").spend(Duration::from_secs(4), 10);
        advance(DAY / 2).await;
        limited.begin().expect("a permit").spend(Duration::from_secs(7), 10);
        let wait = is_refused(&limited, "10 s of processor time a day");
        advance(Duration::from_secs(wait)).await;
        limited.begin().expect("what was spent first is a day old").spend(Duration::ZERO, 2000);
        is_refused(&limited, "1000 bytes of output a day");
    }

    #[tokio::test(start_paused = true)]
    async fn processor_time_that_is_not_known_counts_as_the_most_that_it_can_be() {
        let limited = token(TokenLimits { cpu_s_per_day: Some(10), ..TokenLimits::default() });
        let unknown = Figures { wall: Duration::from_secs(18), ..Figures::default() };
        limited.begin().expect("a permit").count(&unknown, 500);
        limited.begin().expect("nine of ten").count(&Figures { cpu: Some(Duration::ZERO), ..unknown }, 500);
        limited.begin().expect("what is known counts as it is").count(&unknown, 100);
        is_refused(&limited, "10 s of processor time a day");
        assert_eq!(Figures { wall: Duration::MAX, ..unknown }.cpu_or_most(u32::MAX), Duration::MAX / 1000);
    }
}
