//! The keys of an issuer (RFC 7517): found by its metadata or set, read again each hour and for an unknown key. While
//! the issuer is slow or unreachable, the last keys stay valid for a day.
//!
//! ```text
//! find ── one task at a time: asks the issuer; ends by the time limits of `Web`
//! ```

use std::{sync::Arc, time::Duration};

use jsonwebtoken::{
    Algorithm, DecodingKey,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse},
};
use parking_lot::RwLock;
use serde_json::Value;
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};
use tracing::{info, warn};

use super::Rejection;
use crate::ports::web::{NamedBy, Web};

const FRESH: Duration = Duration::from_hours(1);
const USABLE: Duration = Duration::from_hours(24);
/// How often a key that is not known makes the server ask, after an answer and without one.
const ASK_EVERY: Duration = Duration::from_mins(1);
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// How long a token waits for newer keys when its key is known.
const NEWER_MAX: Duration = Duration::from_millis(500);
/// Keys that are read of an answer.
const KEYS_MAX: usize = 100;

pub(super) struct Keys {
    issuer: String,
    /// As in the options.
    at: Option<String>,
    web: Arc<dyn Web>,
    cached: RwLock<Option<Arc<CachedKeys>>>,
    /// When the issuer was asked last, and whether it answered. Held while it is asked, so that it is asked once.
    asked: Arc<Mutex<Option<(Instant, bool)>>>,
}

struct CachedKeys {
    keys: Vec<Jwk>,
    read: Instant,
}

impl Keys {
    pub(super) fn new(issuer: String, at: Option<String>, web: Arc<dyn Web>) -> Self {
        Self { issuer, at, web, cached: RwLock::default(), asked: Arc::default() }
    }

    /// The key that a token names; without a name, the only one that fits.
    pub(super) async fn find(
        self: &Arc<Self>,
        kid: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<DecodingKey, Rejection> {
        let within = |age| self.cached_within(age).and_then(|cached| cached.find(kid, algorithm));
        if let Some(key) = within(FRESH) {
            return Ok(key);
        }
        let old = within(USABLE);
        let mut asked = match (Arc::clone(&self.asked).try_lock_owned(), &old) {
            (Ok(asked), _) => asked,
            // It is being asked.
            (Err(_), Some(key)) => return Ok(key.clone()),
            (Err(_), None) => Arc::clone(&self.asked).lock_owned().await,
        };
        // Another request may have asked meanwhile.
        if let Some(key) = within(FRESH) {
            return Ok(key);
        }
        let is_due = |(when, answered): (Instant, bool)| when.elapsed() >= if answered { ASK_EVERY } else { ASK_AGAIN };
        let answered = if asked.is_none_or(is_due) {
            let keys = Arc::clone(self);
            // It goes on when the request does not wait for it any more.
            let asking = tokio::spawn(async move {
                let answered = keys.read().await;
                *asked = Some((Instant::now(), answered));
                answered
            });
            match old {
                Some(old) => match timeout(NEWER_MAX, asking).await {
                    Ok(answered) => answered.unwrap_or(false),
                    Err(_) => return Ok(old),
                },
                None => asking.await.unwrap_or(false),
            }
        } else {
            asked.is_some_and(|(_, answered)| answered)
        };
        within(USABLE).ok_or(if answered { Rejection::Invalid } else { Rejection::Unavailable })
    }

    fn cached_within(&self, age: Duration) -> Option<Arc<CachedKeys>> {
        let cached = self.cached.read().clone();
        cached.filter(|cached| cached.read.elapsed() < age)
    }

    /// Reads the keys; whether they could be.
    async fn read(&self) -> bool {
        let address = match &self.at {
            Some(address) => Some(address.clone()),
            None => self.address().await,
        };
        let Some(address) = address else { return false };
        let Some(Value::Array(listed)) = self.get(&address).await.map(|mut set| set["keys"].take()) else {
            warn!(address, "the keys of the issuer were not read: tokens are checked with those that were read before");
            return false;
        };
        // A key of an unknown kind makes the others no worse.
        let keys: Vec<_> =
            listed.into_iter().take(KEYS_MAX).filter_map(|key| serde_json::from_value(key).ok()).collect();
        info!(address, keys = keys.len(), "the keys of the issuer were read");
        *self.cached.write() = Some(Arc::new(CachedKeys { keys, read: Instant::now() }));
        true
    }

    /// Where the metadata of the issuer says that its keys are (OpenID Connect Discovery, RFC 8414).
    async fn address(&self) -> Option<String> {
        let issuer = self.issuer.trim_end_matches('/');
        let origin = issuer.match_indices('/').nth(2).map_or(issuer, |(at, _)| &issuer[..at]);
        let path = &issuer[origin.len()..];
        let addresses = [
            format!("{issuer}/.well-known/openid-configuration"),
            format!("{origin}/.well-known/oauth-authorization-server{path}"),
        ];
        for address in addresses {
            let Some(found) = self.get(&address).await else { continue };
            if found["issuer"].as_str() != Some(&self.issuer) {
                warn!(address, "the metadata is of another issuer: SANDBOX_SIGN_IN__ISSUER must be what it says");
                continue;
            }
            let keys = found["jwks_uri"].as_str().map(str::to_owned);
            // Keys that came in the clear would be an attacker's.
            return keys.filter(|keys| keys.starts_with("https://") || issuer.starts_with("http://"));
        }
        warn!(issuer, "the metadata of the issuer was not read");
        None
    }

    async fn get(&self, address: &str) -> Option<Value> {
        let request = http::Request::get(address).header(http::header::ACCEPT, "application/json").body(Vec::new());
        let answer = self.web.send(NamedBy::Operator, request.ok()?).await.ok()?;
        (answer.status() == http::StatusCode::OK).then(|| serde_json::from_slice(answer.body()).ok()).flatten()
    }
}

impl CachedKeys {
    fn find(&self, kid: Option<&str>, algorithm: Algorithm) -> Option<DecodingKey> {
        let is_named = |key: &&Jwk| kid.is_none() || key.common.key_id.as_deref() == kid;
        let mut found = self.keys.iter().filter(is_named).filter(|key| fits(key, algorithm));
        let key = found.next()?;
        let is_only = found.next().is_none();
        if is_only { DecodingKey::from_jwk(key).ok() } else { None }
    }
}

/// Whether a key is made for an algorithm: what may be used follows from the key and not from the token.
fn fits(key: &Jwk, algorithm: Algorithm) -> bool {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    let is_kind = match &key.algorithm {
        AlgorithmParameters::RSA(_) => matches!(algorithm, RS256 | RS384 | RS512 | PS256 | PS384 | PS512),
        AlgorithmParameters::EllipticCurve(curve) => {
            matches!((&curve.curve, algorithm), (EllipticCurve::P256, ES256) | (EllipticCurve::P384, ES384))
        }
        AlgorithmParameters::OctetKeyPair(pair) => matches!((&pair.curve, algorithm), (EllipticCurve::Ed25519, EdDSA)),
        _ => false,
    };
    let signs = matches!(key.common.public_key_use, None | Some(PublicKeyUse::Signature));
    let named = key.common.key_algorithm.map(|named| named.to_string());
    is_kind && signs && named.is_none_or(|named| named == format!("{algorithm:?}"))
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use serde_json::json;
    use tokio::time::{advance, sleep};

    use super::*;
    use crate::ports::web::WebError;

    /// The names of the keys that an issuer publishes, `None` while it is away; how often it was asked; how long its
    /// answer takes.
    #[derive(Default)]
    struct Published(parking_lot::Mutex<(Option<Vec<&'static str>>, usize, Duration)>);

    #[async_trait]
    impl Web for Published {
        async fn send(&self, _: NamedBy, _: http::Request<Vec<u8>>) -> Result<http::Response<Vec<u8>>, WebError> {
            let (names, takes) = {
                let mut published = self.0.lock();
                published.1 += 1;
                (published.0.clone().ok_or(WebError::Unreachable)?, published.2)
            };
            if !takes.is_zero() {
                sleep(takes).await;
            }
            let keys: Vec<_> =
                names.iter().map(|kid| json!({"kty": "RSA", "kid": kid, "n": "AQAB", "e": "AQAB"})).collect();
            Ok(http::Response::new(json!({"keys": keys}).to_string().into_bytes()))
        }
    }

    struct World {
        issuer: Arc<Published>,
        keys: Arc<Keys>,
    }

    impl World {
        fn new() -> Self {
            let issuer = Arc::new(Published::default());
            let at = Some("https://id.test/keys".to_owned());
            Self { keys: Arc::new(Keys::new("https://id.test".to_owned(), at, issuer.clone())), issuer }
        }

        fn publishes(&self, names: Option<&[&'static str]>) {
            self.issuer.0.lock().0 = names.map(<[_]>::to_vec);
        }

        /// Whether there is a key of this name, and how often the issuer was asked until then.
        async fn find(&self, kid: &str) -> (Result<(), Rejection>, usize) {
            let found = self.keys.find(Some(kid), Algorithm::RS256).await.map(drop);
            (found, self.issuer.0.lock().1)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn new_key_is_read_and_an_unknown_one_asks_once_a_minute() {
        let world = World::new();
        world.publishes(Some(&["first"]));
        assert_eq!(world.find("first").await, (Ok(()), 1));
        world.publishes(Some(&["first", "second"]));
        assert_eq!(world.find("second").await, (Err(Rejection::Invalid), 1), "it was read a moment ago");
        advance(ASK_EVERY.saturating_sub(Duration::from_secs(1))).await;
        assert_eq!(world.find("second").await, (Err(Rejection::Invalid), 1));
        advance(Duration::from_secs(1)).await;
        assert_eq!(world.find("second").await, (Ok(()), 2), "the new key");
        assert_eq!(world.find("first").await, (Ok(()), 2), "beside the old one");
        for _ in 0..3 {
            for name in ["unknown", "other", "another"] {
                assert_eq!(world.find(name).await, (Err(Rejection::Invalid), 2));
            }
        }
        advance(ASK_EVERY).await;
        for name in ["unknown", "other", "another"] {
            assert_eq!(world.find(name).await, (Err(Rejection::Invalid), 3));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn known_key_does_not_wait_for_a_slow_issuer() {
        let world = World::new();
        world.publishes(Some(&["first"]));
        assert_eq!(world.find("first").await, (Ok(()), 1));
        advance(FRESH).await;
        world.publishes(Some(&["second"]));
        let takes = Duration::from_secs(20);
        world.issuer.0.lock().2 = takes;
        let began = Instant::now();
        for _ in 0..3 {
            assert_eq!(world.find("first").await, (Ok(()), 2), "it is asked once");
        }
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        assert_eq!(world.find("second").await, (Ok(()), 2), "a key that is not known waits");
        assert!(began.elapsed() >= takes, "{:?}", began.elapsed());
        assert_eq!(world.find("first").await, (Err(Rejection::Invalid), 2), "it was withdrawn");
    }

    #[tokio::test(start_paused = true)]
    async fn key_that_is_withdrawn_ends_within_the_hour_and_with_an_absent_issuer_within_a_day() {
        let world = World::new();
        world.publishes(Some(&["first", "second"]));
        assert_eq!(world.find("first").await, (Ok(()), 1));
        world.publishes(Some(&["second"]));
        advance(FRESH.saturating_sub(Duration::from_secs(1))).await;
        assert_eq!(world.find("first").await, (Ok(()), 1));
        advance(Duration::from_secs(1)).await;
        assert_eq!(world.find("first").await, (Err(Rejection::Invalid), 2));
        assert_eq!(world.find("second").await, (Ok(()), 2));
        world.publishes(None);
        advance(FRESH).await;
        assert_eq!(world.find("second").await, (Ok(()), 3), "what was read goes on");
        assert_eq!(world.find("first").await, (Err(Rejection::Unavailable), 3), "it may be a new one");
        advance(ASK_AGAIN).await;
        assert_eq!(world.find("first").await, (Err(Rejection::Unavailable), 4));
        advance(USABLE.saturating_sub(FRESH + ASK_AGAIN)).await;
        assert_eq!(world.find("second").await, (Err(Rejection::Unavailable), 5));
    }
}
