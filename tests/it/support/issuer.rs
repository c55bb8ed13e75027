//! Another issuer, on a port of its own: its metadata and its keys, which a test changes, and tokens that it signs.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use axum::{Json, Router, extract::State, http::StatusCode, routing::get};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, jwk::Jwk};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use super::http::serve;

pub struct Issuer {
    pub url: String,
    facts: Arc<Facts>,
    _serving: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct Facts {
    metadata: Mutex<Value>,
    /// `None` while the issuer is away.
    keys: Mutex<Option<Vec<Value>>>,
    asked: AtomicUsize,
}

/// A key of the issuer.
pub struct Key {
    pub kid: String,
    pub algorithm: Algorithm,
    secret: EncodingKey,
}

impl Key {
    /// A new ES256 key.
    pub fn new(kid: &str) -> Self {
        let der = made(
            "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 | \
             openssl pkcs8 -topk8 -nocrypt -outform DER",
        );
        Self { kid: kid.to_owned(), algorithm: Algorithm::ES256, secret: EncodingKey::from_ec_der(&der) }
    }

    /// A new RSA key for an algorithm, such as the RS256 of most issuers.
    pub fn rsa(kid: &str, algorithm: Algorithm) -> Self {
        let der = made(
            "openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 | \
             openssl rsa -traditional -outform DER",
        );
        Self { kid: kid.to_owned(), algorithm, secret: EncodingKey::from_rsa_der(&der) }
    }

    pub fn public(&self) -> Value {
        let mut jwk = Jwk::from_encoding_key(&self.secret, self.algorithm).expect("a public key");
        jwk.common.key_id = Some(self.kid.clone());
        serde_json::to_value(jwk).expect("JSON")
    }

    pub fn sign(&self, claims: &Value) -> String {
        let mut header = Header::new(self.algorithm);
        header.kid = Some(self.kid.clone());
        self.sign_with(&header, claims)
    }

    pub fn sign_with(&self, header: &Header, claims: &Value) -> String {
        encode(header, claims, &self.secret).expect("a token")
    }
}

/// What a command of openssl prints.
fn made(script: &str) -> Vec<u8> {
    let made = std::process::Command::new("sh").args(["-c", script]).output().expect("openssl");
    assert!(made.status.success() && !made.stdout.is_empty(), "openssl makes keys");
    made.stdout
}

impl Issuer {
    pub async fn start(keys: &[&Key]) -> Self {
        let facts = Arc::new(Facts::default());
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(metadata))
            .route("/keys", get(listed))
            .route("/cdn-cgi/access/certs", get(listed))
            .with_state(Arc::clone(&facts));
        let (address, serving) = serve(router).await;
        let url = format!("http://{address}");
        *facts.metadata.lock().expect("no panic") = json!({"issuer": url, "jwks_uri": format!("{url}/keys")});
        let issuer = Self { url, facts, _serving: serving };
        issuer.has(keys);
        issuer
    }

    /// From now on these are its keys.
    pub fn has(&self, keys: &[&Key]) {
        self.publishes(keys.iter().map(|key| key.public()).collect());
    }

    pub fn publishes(&self, keys: Vec<Value>) {
        *self.facts.keys.lock().unwrap_or_else(PoisonError::into_inner) = Some(keys);
    }

    /// It answers with errors.
    pub fn goes_away(&self) {
        *self.facts.keys.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// How often its keys were read.
    pub fn asked(&self) -> usize {
        self.facts.asked.load(Ordering::SeqCst)
    }

    /// What a token says that is valid for a resource, with changes; null removes a claim.
    pub fn claims(&self, resource: &str, changes: &Value) -> Value {
        let now = std::time::UNIX_EPOCH.elapsed().expect("a clock").as_secs();
        let mut claims = json!({"iss": self.url, "aud": resource, "sub": "alice", "iat": now, "exp": now + 600});
        for (name, value) in changes.as_object().expect("an object") {
            claims[name] = value.clone();
        }
        claims.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
        claims
    }
}

async fn metadata(State(facts): State<Arc<Facts>>) -> Json<Value> {
    Json(facts.metadata.lock().unwrap_or_else(PoisonError::into_inner).clone())
}

async fn listed(State(facts): State<Arc<Facts>>) -> Result<Json<Value>, StatusCode> {
    facts.asked.fetch_add(1, Ordering::SeqCst);
    let keys = facts.keys.lock().unwrap_or_else(PoisonError::into_inner).clone();
    keys.map(|keys| Json(json!({"keys": keys}))).ok_or(StatusCode::BAD_GATEWAY)
}
