//! What is forgotten, and when; and readings that are old.

use std::sync::{OnceLock, Weak};

use async_trait::async_trait;
use secrecy::ExposeSecret as _;
use tokio::{sync::Notify, time::Instant};

use super::{
    super::{blank_record, digest, random_secret},
    *,
};
use crate::{
    domain::{
        InstanceId, TokenId,
        clock::{ManualClock, PacedClock},
        token::{AccessRecord, CONNECTION_MARK, SUBJECT_MARK, TOKEN_MARK},
    },
    ports::database::TokenStore,
};

/// A database that has one token at most, and does not answer when some are to be removed.
#[derive(Default)]
struct Hanging {
    forgets: Notify,
    /// A token that ends while it is read or stored.
    ends: OnceLock<(Weak<Tokens>, TokenRecord)>,
}

#[async_trait]
impl TokenStore for Hanging {
    async fn changed(&self, _: i64) -> DbResult<Vec<TokenRecord>> {
        let Some((tokens, read)) = self.ends.get() else { return Ok(Vec::new()) };
        let tokens = tokens.upgrade().expect("the tokens");
        tokens.learn(vec![TokenRecord { revoked_unix_ms: Some(1), ..read.clone() }]);
        Ok(vec![read.clone()])
    }

    async fn access(&self, _: i64) -> DbResult<Vec<AccessRecord>> {
        Ok(Vec::new())
    }

    async fn insert(&self, _: &TokenRecord) -> DbResult<()> {
        self.changed(0).await.map(drop)
    }

    async fn revoke(&self, _: &TokenId, _: i64) -> DbResult<Option<Vec<TokenRecord>>> {
        unreachable!()
    }

    async fn bind_connections(&self, _: &TokenId, _: &[TokenId], _: i64) -> DbResult<Vec<TokenId>> {
        unreachable!()
    }

    async fn restore(&self, _: &TokenId, _: i64) -> DbResult<bool> {
        unreachable!()
    }

    async fn used(&self, _: &[(TokenId, i64)]) -> DbResult<()> {
        unreachable!()
    }

    async fn spent(&self, _: &[TokenId], _: i64, _: (InstanceId, i64)) -> DbResult<Vec<(TokenId, (u64, u64))>> {
        unreachable!()
    }

    async fn forget(&self, _: i64) -> DbResult<()> {
        self.forgets.notify_one();
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn the_stop_does_not_wait_for_the_removal_of_old_tokens() {
    let (store, clock) = (Arc::new(Hanging::default()), Arc::new(PacedClock(Instant::now())));
    let tokens = Tokens::new(&"0123456789abcdef".to_owned().into(), store.clone(), clock);
    let stop = CancellationToken::new();
    let following = tokio::spawn(Arc::new(tokens).follow(stop.clone()));
    store.forgets.notified().await;
    stop.cancel();
    timeout(ROUND_MAX / 2, following).await.expect("the stop waits for no answer").expect("it ended");
}

/// Tokens of a database in which this subject ends while it is read or stored.
fn ending(subject: &TokenRecord) -> Arc<Tokens> {
    let (store, clock) = (Arc::new(Hanging::default()), Arc::new(ManualClock::at(1_800_000_000)));
    let tokens = Arc::new(Tokens::new(&"0123456789abcdef".to_owned().into(), store.clone(), clock));
    drop(store.ends.set((Arc::downgrade(&tokens), subject.clone())));
    tokens
}

#[tokio::test]
async fn a_subject_that_ends_while_it_is_read_stays_refused() {
    let subject = TokenRecord { digest: [1; 32], prefix: SUBJECT_MARK.to_owned(), ..blank_record() };
    for known in [vec![subject.clone()], Vec::new()] {
        let tokens = ending(&subject);
        tokens.learn(known);
        tokens.load().await;
        let known = tokens.known.read().by_id(subject.id).map(|token| token.record.revoked_unix_ms);
        assert_eq!(known, Some(Some(1)));
    }
}

#[tokio::test]
async fn a_subject_that_ends_while_it_is_stored_stays_refused() {
    let subject = TokenRecord { digest: [1; 32], prefix: SUBJECT_MARK.to_owned(), ..blank_record() };
    let known = ending(&subject).know_subject(subject.digest, &subject.owner, "ann", &[]).await;
    assert!(!known.expect("it is stored"));
}

#[test]
fn tokens_that_ended_long_ago_are_forgotten_whichever_server_removed_them() {
    const LONG_AGO: Option<i64> = Some(99);
    let tokens = Tokens::unstored(Arc::new(ManualClock::at(1_800_000_000)));
    let record = |mark: &str, expires_unix_ms, revoked_unix_ms| {
        let (digest, prefix) = (digest(random_secret(mark).expose_secret().as_bytes()), mark.to_owned());
        TokenRecord { prefix, digest, expires_unix_ms, revoked_unix_ms, ..blank_record() }
    };
    let forgotten = [record(TOKEN_MARK, LONG_AGO, None), record(CONNECTION_MARK, None, LONG_AGO)];
    let kept = [
        record(TOKEN_MARK, None, None),
        record(TOKEN_MARK, Some(100), None),
        record(CONNECTION_MARK, None, Some(100)),
        record(SUBJECT_MARK, None, LONG_AGO),
    ];
    tokens.learn(forgotten.iter().chain(&kept).cloned().collect());
    tokens.known.write().remove_ended(100);
    let is_known = |token: &TokenRecord| tokens.known.read().by_id(token.id).is_some();
    assert!(!forgotten.iter().any(is_known) && kept.iter().all(is_known));
    assert!(tokens.caller(b"0123456789abcdef").is_some(), "that of the settings");
}
