//! Tokens of another issuer: JWTs (RFC 7519) that it signs are accepted as its subjects. A subject is recorded as a
//! connection, which is listed and can be ended here, because a revocation at the issuer does not act at once.
//!
//! A JWT is verified once and then cached until it expires.

mod keys;

use std::sync::Arc;

use jsonwebtoken::{Algorithm, Validation, decode, decode_header};
use serde_json::{Map, Value};
use tracing::{debug, info};

use self::keys::Keys;
use super::tokens::{Tokens, digest};
use crate::{
    domain::{Principal, Scope, path::is_misleading, token::NAME_CHARS_MAX},
    ports::web::Web,
};

/// The longest JWT, in bytes.
const JWT_BYTES_MAX: usize = 16 << 10;
/// How far clocks may be apart, in seconds.
const LEEWAY_S: u64 = 60;
/// What may sign. Neither `none` nor a shared secret is among it.
const ALGORITHMS: [Algorithm; 9] = {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    [RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA]
};
/// What a token for a resource says that it is (RFC 9068). Others, such as a token for signing out, are none.
const TYPES: [&str; 3] = ["jwt", "at+jwt", "application/at+jwt"];

#[derive(Debug, Clone)]
pub struct IssuerOptions {
    /// `iss`, as it is in the tokens.
    pub name: String,
    /// The address of its keys; `None`: where its metadata says.
    pub keys: Option<String>,
    /// One of them has to be in `aud`.
    pub audiences: Vec<String>,
    /// The claim that names the owner.
    pub owner_claim: String,
    /// What a token may do that names none of our scopes.
    pub default_scopes: Vec<Scope>,
    /// The issuer's word for the scope `admin`.
    pub admin_scope: Option<String>,
}

/// Why a JWT is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    #[error("the token is not valid here")]
    Invalid,
    #[error("the issuer's keys, or the database, cannot be read")]
    Unavailable,
}

pub struct Issuer {
    options: IssuerOptions,
    keys: Arc<Keys>,
    tokens: Arc<Tokens>,
}

impl Issuer {
    pub fn new(options: IssuerOptions, web: Arc<dyn Web>, tokens: Arc<Tokens>) -> Self {
        let keys = Arc::new(Keys::new(options.name.clone(), options.keys.clone(), web));
        Self { options, keys, tokens }
    }

    pub fn name(&self) -> &str {
        &self.options.name
    }

    /// Verifies a JWT, unless it is known, and makes it one of the server's tokens until it expires.
    ///
    /// # Errors
    /// [`Rejection::Invalid`]; [`Rejection::Unavailable`] when it cannot be verified now.
    pub async fn recognize(&self, jwt: &str) -> Result<(), Rejection> {
        if self.tokens.is_accepted(jwt.as_bytes()) {
            return Ok(());
        }
        if jwt.len() > JWT_BYTES_MAX {
            return Err(Rejection::Invalid);
        }
        let (algorithm, kid) = header(jwt).ok_or(Rejection::Invalid)?;
        let key = self.keys.find(kid.as_deref(), algorithm).await?;
        let claims = decode::<Map<String, Value>>(jwt, &key, &self.validation(algorithm)).map_err(|error| {
            debug!(issuer = self.options.name, %error, "a token of the issuer is not valid");
            Rejection::Invalid
        })?;
        self.admit(jwt, &claims.claims).await
    }

    fn validation(&self, algorithm: Algorithm) -> Validation {
        let mut validation = Validation::new(algorithm);
        validation.set_issuer(&[&self.options.name]);
        validation.set_audience(&self.options.audiences);
        // One that is not required is not looked at when it is missing.
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        validation.validate_nbf = true;
        validation.leeway = LEEWAY_S;
        validation
    }

    async fn admit(&self, jwt: &str, claims: &Map<String, Value>) -> Result<(), Rejection> {
        let text = |name: &str| claims.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let subject = text("sub").ok_or(Rejection::Invalid)?;
        let claim = &self.options.owner_claim;
        // Most issuers leave the mark out of access tokens, some write it as a text; one that denies it is believed.
        let is_proven = |mark: &Value| *mark == true || *mark == "true";
        let is_unproven = claim == "email" && claims.get("email_verified").is_some_and(|mark| !is_proven(mark));
        let Some(named) = text(claim).filter(|_| !is_unproven) else {
            info!(issuer = self.options.name, claim, is_unproven, "a token does not name its owner");
            return Err(Rejection::Invalid);
        };
        let owner = Principal::of_claim(&self.options.name, named);
        let expires_s = claims.get("exp").and_then(Value::as_f64).ok_or(Rejection::Invalid)?;
        #[expect(clippy::cast_possible_truncation, reason = "it saturates")]
        let expires_unix_ms = ((expires_s + 60.0) * 1000.0) as i64;
        let scopes = self.scopes(claims);
        let key = digest(format!("jwt\0{}\0{subject}", self.options.name).as_bytes());
        let name = subject_name(&self.options.name, named);
        let known = self.tokens.know_subject(key, &owner, &name, &scopes).await.map_err(|_| Rejection::Unavailable)?;
        if !known {
            return Err(Rejection::Invalid);
        }
        self.tokens.accept_as(digest(jwt.as_bytes()), key, expires_unix_ms, owner, scopes);
        Ok(())
    }

    /// `scope` is a text with spaces, `scp` that or a list. `admin` only by the issuer's own word for it.
    fn scopes(&self, claims: &Map<String, Value>) -> Vec<Scope> {
        let words: Vec<&str> = ["scope", "scp"]
            .iter()
            .filter_map(|name| claims.get(*name))
            .flat_map(|claim| match claim {
                Value::String(text) => text.split_ascii_whitespace().collect(),
                Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
                _ => Vec::new(),
            })
            .collect();
        let mut scopes: Vec<_> =
            [Scope::Run, Scope::Files].into_iter().filter(|scope| words.contains(&scope.as_str())).collect();
        if scopes.is_empty() {
            scopes.clone_from(&self.options.default_scopes);
        }
        if self.options.admin_scope.as_deref().is_some_and(|admin| words.contains(&admin)) {
            scopes.push(Scope::Admin);
        }
        scopes
    }
}

/// The algorithm and the key that a JWT names, if it is of a kind that is accepted. Addresses of keys in it (`jku`,
/// `x5u`) are not read, nor keys (`jwk`); with an extension that must be understood (`crit`) it is refused.
fn header(jwt: &str) -> Option<(Algorithm, Option<String>)> {
    let header = decode_header(jwt).ok()?;
    let is_token = header.typ.as_ref().is_none_or(|typ| TYPES.contains(&typ.to_ascii_lowercase().as_str()));
    let is_plain = header.crit.is_none() && !header.extras.inner().contains_key("b64");
    (is_token && is_plain && ALGORITHMS.contains(&header.alg)).then_some((header.alg, header.kid))
}

/// What is listed of a subject.
fn subject_name(issuer: &str, claim: &str) -> String {
    let host = issuer.split('/').nth(2).unwrap_or_default();
    format!("{claim} ({host})").chars().filter(|c| !is_misleading(*c)).take(NAME_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
    use serde_json::json;

    use super::*;

    #[test]
    fn tokens_with_extensions_that_must_be_understood_are_refused() {
        let named = |raw: Value| header(&format!("{}.e30.AAAA", BASE64_URL_SAFE_NO_PAD.encode(raw.to_string())));
        assert_eq!(named(json!({"alg": "ES256", "x": true})), Some((Algorithm::ES256, None)));
        for raw in [json!({"alg": "ES256", "crit": ["exp"]}), json!({"alg": "ES256", "b64": false})] {
            assert_eq!(named(raw.clone()), None, "{raw}");
        }
    }
}
