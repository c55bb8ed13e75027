//! Bearer tokens, checked before a body is read, and the share of connections that a request may use.

mod scopes;

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures_util::StreamExt as _;
use http_body::Body as _;
use ipnet::IpNet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{body, coderunner, e2b, error::ApiError, health, librechat, sign_in};
use crate::{
    domain::{
        address::network,
        error::{Code, Failure},
        id::TokenId,
        owner::Principal,
    },
    services::tokens::{Caller, Tokens},
};

/// Where a request comes from, among its extensions. Behind a proxy that is not among [`Proxies`] this is the proxy.
#[derive(Debug, Clone, Copy)]
pub struct ClientAddress(pub IpAddr);

/// Proxies whose word about the address of a client counts.
pub type Proxies = Arc<[IpNet]>;

/// The address of the client, which Cloudflare's edge sets and its tunnel passes on.
const CONNECTING: HeaderName = HeaderName::from_static("cf-connecting-ip");

/// Among a request's extensions: the listener has no room to answer it.
#[derive(Debug, Clone, Copy)]
pub struct NoAnswerPermit;

/// The class of a request's sender, which decides about room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Class {
    /// A health probe.
    Probe,
    /// With a valid token.
    Holder {
        owner: Principal,
        token: TokenId,
    },
    Guest,
}

impl Class {
    pub fn of(tokens: &Tokens, path: &str, headers: &HeaderMap) -> Self {
        // An assertion of Cloudflare Access becomes the token of its request later.
        let asserted = || sign_in::assertion(headers).and_then(|assertion| tokens.caller(assertion.as_bytes()));
        match caller(tokens, path, headers).or_else(asserted) {
            _ if health::PATHS.contains(&path) => Self::Probe,
            Some(Caller { owner, token }) => Self::Holder { owner, token: token.record.id },
            None => Self::Guest,
        }
    }
}

/// Who sends a request with a valid token: `Authorization: Bearer`, and on the paths of CodeRunner's and
/// LibreChat's clients also `X-API-Key` and the password of HTTP Basic.
pub(super) fn caller(tokens: &Tokens, path: &str, headers: &HeaderMap) -> Option<Caller> {
    // Of two headers one could be a proxy's and the other an attacker's.
    let only = |name: HeaderName| {
        let mut all = headers.get_all(name).iter();
        all.next().filter(|_| all.next().is_none()).map(HeaderValue::as_bytes)
    };
    let takes_keys = coderunner::takes_keys(path) || librechat::is_own(path) || e2b::is_own(path);
    // E2B's SDK names a user of the sandbox in `Authorization`.
    if e2b::is_own(path)
        && let Some(key) = e2b::KEYS.into_iter().find_map(only)
    {
        return tokens.caller(key);
    }
    if !headers.contains_key(header::AUTHORIZATION) {
        return only(coderunner::KEY).filter(|_| takes_keys).and_then(|key| tokens.caller(key));
    }
    let value = only(header::AUTHORIZATION)?;
    tokens.authorize(value).or_else(|| password(value).filter(|_| takes_keys).and_then(|key| tokens.caller(&key)))
}

/// The password of HTTP Basic (RFC 7617).
fn password(value: &[u8]) -> Option<Vec<u8>> {
    let (scheme, rest) = value.split_at_checked("basic ".len())?;
    let pair = BASE64_STANDARD.decode(rest.trim_ascii()).ok().filter(|_| scheme.eq_ignore_ascii_case(b"basic "))?;
    let colon = pair.iter().position(|&byte| byte == b':')?;
    Some(pair[colon + 1..].to_vec())
}

/// Refuses a request for which there is no room.
pub async fn turn(request: Request, next: Next) -> Response {
    if request.extensions().get::<NoAnswerPermit>().is_none() {
        return next.run(request).await;
    }
    let why = "The server has no room for another request of this sender: send it again in a moment.";
    ApiError::new(Code::QueueFull, why).into_response()
}

/// Takes the address of a client from a proxy that is trusted.
pub async fn forwarded(State(proxies): State<Proxies>, mut request: Request, next: Next) -> Response {
    let peer = request.extensions().get().map(|ClientAddress(peer)| *peer);
    // Of IPv6 only the network of the peer is known.
    let is_trusted = |peer: IpAddr| proxies.iter().any(|net| net.contains(&peer) || network(net.network()) == peer);
    if peer.is_some_and(is_trusted) {
        let mut all = request.headers().get_all(CONNECTING).iter();
        let only = all.next().filter(|_| all.next().is_none()).and_then(|value| value.to_str().ok());
        if let Some(client) = only.and_then(|text| text.trim().parse().ok()) {
            request.extensions_mut().insert(ClientAddress(network(client)));
        }
    }
    next.run(request).await
}

/// Passes a request with a valid token on with its principal and its token, if the token has the scope; any other is
/// 401 or 403. A wrong token is answered late when there were many, so that tokens cannot be guessed quickly. What is
/// under way ends when the token does.
pub async fn bearer(State(tokens): State<Arc<Tokens>>, mut request: Request, next: Next) -> Response {
    let mut found = caller(&tokens, request.uri().path(), request.headers());
    // One that another process has just made.
    let may_be_new = found.is_none() && tried(&request).is_some();
    if may_be_new && tokens.catch_up().await {
        found = caller(&tokens, request.uri().path(), request.headers());
    }
    let Some(Caller { owner, token }) = found else {
        return refuse(&tokens, tried(&request)).await.into_response();
    };
    if let Err(failure) = scopes::check(&token, request.method(), request.uri().path()) {
        return ApiError::from(failure).into_response();
    }
    request.extensions_mut().insert(owner.clone());
    request.extensions_mut().insert(Arc::clone(&token));
    // Who only listens can do so again with a new token; the answer of anything else would be lost.
    let end = if request.method() == Method::GET { token.expired() } else { token.ended() }.clone();
    let answer = tokio::select! {
        answer = body::counted_for(owner, next.run(request)) => answer,
        () = end.cancelled() => return ended().into_response(),
    };
    // A whole body is on its way already.
    if answer.body().size_hint().exact().is_some() { answer } else { answer.map(|body| until_ended(body, end)) }
}

/// Where a request with a wrong token comes from; `None` for one without a token.
fn tried(request: &Request) -> Option<IpAddr> {
    let [access, traffic] = e2b::KEYS;
    let keys = [header::AUTHORIZATION, coderunner::KEY, access, traffic];
    let from = || request.extensions().get().map_or(Ipv4Addr::UNSPECIFIED.into(), |ClientAddress(address)| *address);
    keys.iter().any(|name| request.headers().contains_key(name)).then(from)
}

async fn refuse(tokens: &Tokens, tried: Option<IpAddr>) -> ApiError {
    if !tokens.is_loaded() {
        let why = "The tokens of the server's database are not known yet: try again in a moment.";
        return Failure::new(Code::DatabaseUnavailable, why).into();
    }
    if let Some(from) = tried {
        sleep(tokens.refused(from)).await;
    }
    let why = "Send the header `Authorization: Bearer <token>` once, with the server's MCP_API_TOKEN or a token of it.";
    ApiError::new(Code::Unauthorized, why)
}

fn ended() -> ApiError {
    ApiError::new(Code::Unauthorized, "The token was revoked or has expired.")
}

/// A stream that ends with its token.
fn until_ended(body: Body, end: CancellationToken) -> Body {
    Body::from_stream(body.into_data_stream().take_until(Box::pin(end.cancelled_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::{
            clock::SystemClock,
            token::{SUBJECT_MARK, Scope, TokenRecord},
        },
        services::tokens::{blank_record, digest},
    };

    /// All people behind Cloudflare Access have the address of its tunnel, and as guests they had one share together.
    #[test]
    fn person_of_cloudflare_access_is_a_holder_once_the_assertion_is_known() {
        let tokens = Tokens::new(&"0123456789abcdef".to_owned().into(), None, Arc::new(SystemClock));
        let mut headers = HeaderMap::new();
        headers.insert("cf-access-jwt-assertion", HeaderValue::from_static("a.b.c"));
        assert_eq!(Class::of(&tokens, "/v1/runs", &headers), Class::Guest);
        let record = TokenRecord {
            owner: "ann".parse().expect("an owner"),
            prefix: SUBJECT_MARK.to_owned(),
            digest: [1; 32],
            ..blank_record()
        };
        tokens.learn(vec![record.clone()]);
        let (owner, token) = (record.owner, record.id);
        tokens.accept_as(digest(b"a.b.c"), record.digest, i64::MAX, owner.clone(), vec![Scope::Run]);
        assert_eq!(Class::of(&tokens, "/v1/runs", &headers), Class::Holder { owner, token });
    }
}
