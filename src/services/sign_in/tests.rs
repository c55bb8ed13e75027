//! The rounds that remove what has expired, on a paused clock.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::{
    domain::{Grant, TokenDigest, TokenRecord, clock::PacedClock},
    ports::{
        observer::Observers,
        sign_in::{Code, Exchange, Redemption, TokenPair},
        web::{NamedBy, WebError},
    },
};

/// A database that does not answer the next call.
#[derive(Default)]
struct Hanging {
    hangs: AtomicBool,
    asked: AtomicUsize,
}

#[async_trait]
impl SignInStore for Hanging {
    async fn register(&self, _: &RegisteredClient, _: &TokenDigest, _: i64) -> DbResult<String> {
        unreachable!()
    }

    async fn client(&self, _: &str) -> DbResult<Option<RegisteredClient>> {
        unreachable!()
    }

    async fn connect(&self, _: &TokenRecord, _: &Code, _: Option<TokenId>) -> DbResult<bool> {
        unreachable!()
    }

    async fn redeem(&self, _: &Redemption, _: &TokenPair, _: i64) -> DbResult<Exchange> {
        unreachable!()
    }

    async fn grant_of(&self, _: &TokenDigest, _: &str) -> DbResult<Option<(TokenId, Grant)>> {
        unreachable!()
    }

    async fn rotate(&self, _: &TokenDigest, _: &str, _: &TokenPair, _: i64, _: i64) -> DbResult<Exchange> {
        unreachable!()
    }

    async fn connection(&self, _: &TokenDigest, _: Option<&str>) -> DbResult<Option<TokenId>> {
        unreachable!()
    }

    async fn forget(&self, _: i64) -> DbResult<Vec<TokenId>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.hangs.swap(false, Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        Ok(Vec::new())
    }
}

struct NoWeb;

#[async_trait]
impl Web for NoWeb {
    async fn send(&self, _: NamedBy, _: http::Request<Vec<u8>>) -> Result<http::Response<Vec<u8>>, WebError> {
        Err(WebError::Unreachable)
    }
}

#[tokio::test(start_paused = true)]
async fn a_round_that_the_database_never_answers_is_given_up() {
    let (store, clock) = (Arc::new(Hanging::default()), Arc::new(PacedClock(Instant::now())));
    let tokens = Arc::new(Tokens::unstored(clock.clone()));
    let options = SignInOptions {
        issuer: "https://sandbox.test".to_owned(),
        access: Duration::from_hours(1),
        refresh: Duration::from_hours(24),
        key: "0123456789abcdef".to_owned().into(),
        documents: false,
        openid: None,
    };
    let observer = Arc::new(Observers::default());
    let sign_in = Arc::new(SignIn::new(store.clone(), tokens, clock, observer, Arc::new(NoWeb), options));
    let stop = CancellationToken::new();
    store.hangs.store(true, Ordering::Relaxed);
    let keeping = tokio::spawn(sign_in.remove_expired(stop.clone()));
    sleep(FORGET_EVERY * 2 + ROUND_MAX).await;
    assert_eq!(store.asked.load(Ordering::Relaxed), 2, "the next round asks again");
    store.hangs.store(true, Ordering::Relaxed);
    sleep(FORGET_EVERY.saturating_sub(ROUND_MAX / 2)).await;
    assert_eq!(store.asked.load(Ordering::Relaxed), 3, "a round waits");
    stop.cancel();
    timeout(Duration::from_secs(1), keeping).await.expect("the stop waits for no answer").expect("it ended");
}
