//! Bearer tokens and their scopes, checked before a body is read, and the share of connections that a request may use.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, header},
    middleware::Next,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures_util::StreamExt as _;
use http_body::Body as _;
use ipnet::IpNet;
use tokio::time::sleep;

use super::{Reply, body, coderunner, e2b, error::ApiError, health, is_below, librechat, sign_in, single};
use crate::{
    domain::{Code, Failure, Principal, Scope, TokenId, address::network},
    services::tokens::{Caller, Token, Tokens},
};

/// Where a request comes from, among its extensions. Behind a proxy that is not among [`Proxies`] this is the proxy.
#[derive(Debug, Clone, Copy)]
pub struct ClientAddress(pub IpAddr);

impl ClientAddress {
    pub fn of(request: &Request) -> IpAddr {
        request.extensions().get().map_or(Ipv4Addr::UNSPECIFIED.into(), |Self(address)| *address)
    }
}

/// Proxies whose word about the address of a client counts.
pub type Proxies = Arc<[IpNet]>;

/// The address of the client, which Cloudflare's edge sets and its tunnel passes on.
const CONNECTING: HeaderName = HeaderName::from_static("cf-connecting-ip");

/// The class of a request's sender, which decides about room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Class {
    /// A health probe without a body, which would hold up its answer, and without a token that has to be looked at.
    Probe,
    /// With a valid token.
    Holder {
        owner: Principal,
        token: TokenId,
    },
    Guest,
}

impl Class {
    /// The class of a request, whose sender is known from here on: `bearer` does not look it up again.
    pub fn of<B: http_body::Body>(tokens: &Tokens, request: &mut Request<B>) -> Self {
        let (path, headers) = (request.uri().path(), request.headers());
        let found = caller(tokens, path, headers);
        // An assertion of Cloudflare Access becomes the token of its request later.
        let assertion = sign_in::assertion(headers);
        let is_tokenless = assertion.is_none() && !has_key(headers);
        let asserted = || assertion.and_then(|assertion| tokens.caller(assertion.as_bytes()));
        let sender = found.clone().or_else(asserted);
        let is_probe = health::PATHS.contains(&path)
            && [Method::GET, Method::HEAD].contains(request.method())
            && request.body().is_end_stream()
            && (is_tokenless || sender.is_some());
        let class = match sender {
            _ if is_probe => Self::Probe,
            Some(Caller { owner, token }) => Self::Holder { owner, token: token.record.id },
            None => Self::Guest,
        };
        if let Some(caller) = found {
            request.extensions_mut().insert(caller);
        }
        class
    }

    pub fn is_holder(&self) -> bool {
        matches!(self, Self::Holder { .. })
    }
}

/// Who sends a request with a valid token: `Authorization: Bearer`, and on the paths of CodeRunner's and
/// LibreChat's clients also `X-API-Key` and the password of HTTP Basic.
pub(super) fn caller(tokens: &Tokens, path: &str, headers: &HeaderMap) -> Option<Caller> {
    // If there are two headers, one could be a proxy's and the other an attacker's.
    let only = |name: HeaderName| single(headers, &name).ok().flatten().map(HeaderValue::as_bytes);
    let is_of_e2b = is_below(e2b::ROOT, path);
    let takes_keys = coderunner::takes_keys(path) || is_below(librechat::ROOT, path) || is_of_e2b;
    // E2B's SDK names a user of the sandbox in `Authorization`.
    if is_of_e2b && let Some(key) = e2b::KEYS.into_iter().find_map(only) {
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

/// Why the listener does not answer a request, among whose extensions it puts this. One that is not repeatable may have
/// changed something, such as run a program; any other was not carried out, or has only read.
pub fn no_room(is_repeatable: bool) -> ApiError {
    if is_repeatable {
        let why = "The server has no room for another request of this sender: send it again in a moment.";
        return ApiError::new(Code::QueueFull, why);
    }
    let why = "The request was carried out. Its long answer is lost, since this sender has not read others: \
               do not send it again, but look at what it did.";
    ApiError::new(Code::TooLarge, why)
}

/// Refuses a request for which there is no room. Takes the address of the client of any other from a proxy that is
/// trusted.
///
/// # Errors
/// [`no_room`], where the listener put it among the request's extensions.
pub async fn admit(State(proxies): State<Proxies>, mut request: Request, next: Next) -> Reply {
    if let Some(refused) = request.extensions_mut().remove::<ApiError>() {
        return Err(refused);
    }
    let peer = request.extensions().get().map(|ClientAddress(peer)| *peer);
    // Only the network of an IPv6 peer is known.
    let is_trusted = |peer: IpAddr| proxies.iter().any(|net| net.contains(&peer) || network(net.network()) == peer);
    if peer.is_some_and(is_trusted) {
        let only = single(request.headers(), &CONNECTING).ok().flatten().and_then(|value| value.to_str().ok());
        if let Some(client) = only.and_then(|text| text.trim().parse().ok()) {
            request.extensions_mut().insert(ClientAddress(network(client)));
        }
    }
    Ok(next.run(request).await)
}

/// Passes a request with a valid token on with its principal and its token, if the token has the scope; any other is
/// 401 or 403. A wrong token is answered late when there were many, so that tokens cannot be guessed quickly; with 503
/// while it may be one of the database that is not known yet. What is under way ends when the token does. An answer has
/// its owner among its extensions, for the listener: [`Class::of`] does not know every token that is valid here.
pub(super) async fn bearer(State(tokens): State<Arc<Tokens>>, mut request: Request, next: Next) -> Reply {
    // Its token may have ended since.
    let found = request.extensions_mut().remove::<Caller>().filter(|found| !found.token.expired().is_cancelled());
    let mut found = found.or_else(|| caller(&tokens, request.uri().path(), request.headers()));
    // One that another process has just made.
    let may_be_new = found.is_none() && tried(&request).is_some();
    if may_be_new && tokens.catch_up().await {
        found = caller(&tokens, request.uri().path(), request.headers());
    }
    let Some(Caller { owner, token }) = found else {
        return Err(refuse(&tokens, tried(&request)).await);
    };
    check_scope(&token, request.method(), request.uri().path())?;
    request.extensions_mut().insert(owner.clone());
    request.extensions_mut().insert(Arc::clone(&token));
    // Who only listens can do so again with a new token; the answer of anything else would be lost.
    let end = if request.method() == Method::GET { token.expired() } else { token.ended() }.clone();
    let mut answer = tokio::select! {
        answer = body::counted_for(owner.clone(), next.run(request)) => answer,
        () = end.cancelled() => {
            return Err(ApiError::new(Code::Unauthorized, "The token was revoked or has expired."));
        }
    };
    answer.extensions_mut().insert(owner);
    // A whole body is on its way already. A stream ends with its token.
    if answer.body().size_hint().exact().is_some() {
        return Ok(answer);
    }
    let end = Box::pin(end.cancelled_owned());
    Ok(answer.map(|body| Body::from_stream(body.into_data_stream().take_until(end))))
}

/// Whether a request has a header that can hold a token.
fn has_key(headers: &HeaderMap) -> bool {
    let [access, traffic] = e2b::KEYS;
    [header::AUTHORIZATION, coderunner::KEY, access, traffic].iter().any(|name| headers.contains_key(name))
}

/// Where a request with a wrong token comes from; `None` for one without a token.
pub(super) fn tried(request: &Request) -> Option<IpAddr> {
    has_key(request.headers()).then(|| ClientAddress::of(request))
}

async fn refuse(tokens: &Tokens, tried: Option<IpAddr>) -> ApiError {
    if let Some(from) = tried {
        // Looked up first: the tokens that are read during the delay were not compared with this one.
        let is_loaded = tokens.is_loaded();
        sleep(tokens.refused(from)).await;
        if !is_loaded {
            let why = "The tokens of the server's database are not known yet: try again in a moment.";
            return Failure::new(Code::DatabaseUnavailable, why).into();
        }
    }
    let why = "Send the header `Authorization: Bearer <token>` once, with the server's MCP_API_TOKEN or a token of it.";
    ApiError::new(Code::Unauthorized, why)
}

/// Whether a token has the scope that a path needs. MCP decides by the tool, in `api::mcp`.
fn check_scope(token: &Token, method: &Method, path: &str) -> Result<(), Failure> {
    if removes_container(method, path) {
        token.check_scope(Scope::Run)?;
    }
    scope_of(method, path).map_or(Ok(()), |scope| token.check_scope(scope))
}

/// Whether a request cancels the runs of a conversation before it deletes the files. The deletion of a conversation is
/// refused while a run is under way, so `files` is enough for it.
fn removes_container(method: &Method, path: &str) -> bool {
    let id = path.strip_prefix("/e2b/sandboxes/").or_else(|| path.strip_prefix("/openai/v1/containers/"));
    method == Method::DELETE && id.is_some_and(|id| !id.contains('/'))
}

/// `None` where any token is enough: lists that show what there is, and MCP.
fn scope_of(method: &Method, path: &str) -> Option<Scope> {
    let mut parts = path.split('/').skip(1);
    match (parts.next()?, parts.next(), parts.next(), parts.next()) {
        ("v1", Some("tokens" | "connections" | "history" | "usage" | "owners" | "admin" | "tool-servers"), ..)
        | ("metrics", ..) => Some(Scope::Admin),
        ("v1", Some("approvals"), ..) => Some(Scope::Approve),
        ("v1", Some("skills"), ..) => Some(Scope::Files),
        ("v1", Some("runs" | "sessions" | "executions" | "browser" | "network" | "tools"), ..)
        | ("mcp", Some("events"), ..)
        // An installation runs programs, a program reads the source of a module, and only programs see an empty folder.
        | ("v1", Some("conversations"), Some(_), Some("packages"))
        | ("v1", Some("runners"), Some(_), _)
        | ("e2b", Some("filesystem.Filesystem"), Some("MakeDir"), _) => Some(Scope::Run),
        ("v1", Some("conversations"), id, of_it) => {
            let is_list = id.is_none() || (of_it.is_none() && method == Method::GET);
            (!is_list).then_some(Scope::Files)
        }
        ("v1", ..) if method == Method::GET => None,
        ("api", _, Some("runtimes" | "packages"), None) | ("mcp", ..) => None,
        // CodeRunner's.
        ("upload" | "download", ..)
        | ("librechat", _, Some("upload" | "download" | "files" | "sessions"), _)
        | ("e2b", Some("files" | "filesystem.Filesystem"), ..) => Some(Scope::Files),
        // Deletes a conversation.
        ("e2b" | "openai", ..) if method == Method::DELETE && !path.starts_with("/e2b/contexts/") => Some(Scope::Files),
        ("openai", ..) if parts.next() == Some("files") => Some(Scope::Files),
        ("jupyter", ..) => jupyter(path),
        _ => Some(Scope::Run),
    }
}

/// By the position in the path: any name may be that of a conversation.
fn jupyter(path: &str) -> Option<Scope> {
    let mut parts = path.split('/').skip(2);
    let mut api = parts.next();
    if api == Some("c") {
        api = parts.nth(1);
    }
    match (api, parts.next()) {
        (Some("api"), None | Some("" | "status" | "kernelspecs")) => None,
        (Some("api"), Some("contents")) => Some(Scope::Files),
        _ => Some(Scope::Run),
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, time::Duration};

    use axum::{
        Router,
        body::{Bytes, to_bytes},
        http::StatusCode,
        middleware,
        routing::get,
    };
    use futures_util::stream;
    use tokio::time::timeout;
    use tower::ServiceExt as _;

    use super::*;
    use crate::{
        domain::{TokenRecord, clock::SystemClock, token::SUBJECT_MARK},
        services::tokens::{blank_record, digest},
    };

    /// All people behind Cloudflare Access have the address of its tunnel, and as guests they had one share together.
    #[test]
    fn person_of_cloudflare_access_is_a_holder_once_the_assertion_is_known() {
        let tokens = Tokens::unstored(Arc::new(SystemClock));
        let mut request = Request::new(Body::empty());
        request.headers_mut().insert("cf-access-jwt-assertion", HeaderValue::from_static("a.b.c"));
        assert_eq!(Class::of(&tokens, &mut request), Class::Guest);
        let record = TokenRecord {
            owner: "ann".parse().expect("an owner"),
            prefix: SUBJECT_MARK.to_owned(),
            digest: [1; 32],
            ..blank_record()
        };
        tokens.learn(vec![record.clone()]);
        let (owner, token) = (record.owner, record.id);
        tokens.accept_as(digest(b"a.b.c"), record.digest, i64::MAX, owner.clone(), vec![Scope::Run]);
        assert_eq!(Class::of(&tokens, &mut request), Class::Holder { owner, token });
        assert!(request.extensions().get::<Caller>().is_none(), "it is not verified for this request");
    }

    #[test]
    fn probe_is_get_or_head_without_a_body_and_without_a_wrong_token() {
        let tokens = Tokens::unstored(Arc::new(SystemClock));
        let class = |method: Method, path: &str, name: HeaderName, value: &str, body: Body| {
            let request = axum::http::Request::builder().method(method).uri(path).header(name, value);
            Class::of(&tokens, &mut request.body(body).expect("a request"))
        };
        let endless = || Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
        let assertion = HeaderName::from_static("cf-access-jwt-assertion");
        for path in health::PATHS {
            for method in [Method::GET, Method::HEAD] {
                let of = |name, value, body| class(method.clone(), path, name, value, body);
                assert_eq!(of(header::ACCEPT, "*/*", Body::empty()), Class::Probe, "{path}");
                assert_eq!(of(header::AUTHORIZATION, "Bearer 0123456789abcdef", Body::empty()), Class::Probe, "{path}");
                assert_eq!(of(header::CONTENT_LENGTH, "1", Body::from("x")), Class::Guest, "{path}");
                assert_eq!(of(header::TRANSFER_ENCODING, "chunked", endless()), Class::Guest, "{path}");
                for name in [header::AUTHORIZATION, coderunner::KEY, assertion.clone()] {
                    assert_eq!(of(name, "Bearer guess", Body::empty()), Class::Guest, "{path}");
                }
            }
            assert_eq!(class(Method::POST, path, header::ACCEPT, "*/*", Body::empty()), Class::Guest, "{path}");
        }
        assert_eq!(class(Method::GET, "/", header::ACCEPT, "*/*", Body::empty()), Class::Guest);
    }

    #[tokio::test]
    async fn sender_is_looked_up_once_and_refused_if_the_token_has_ended_since() {
        let tokens = Arc::new(Tokens::unstored(Arc::new(SystemClock)));
        let record = TokenRecord { prefix: "mcps_".to_owned(), digest: digest(b"secret"), ..blank_record() };
        tokens.learn(vec![record.clone()]);
        let layer = middleware::from_fn_with_state(Arc::clone(&tokens), bearer);
        let router = Router::new().route("/v1/runners", get(|| async {})).layer(layer);
        let arrived = || {
            let request = axum::http::Request::get("/v1/runners").header(header::AUTHORIZATION, "Bearer secret");
            let mut request = request.body(Body::empty()).expect("a request");
            let token = record.id;
            assert_eq!(Class::of(&tokens, &mut request), Class::Holder { owner: record.owner.by(token), token });
            request.headers_mut().remove(header::AUTHORIZATION);
            request
        };
        let (early, late) = (arrived(), arrived());
        let answer = router.clone().oneshot(early).await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.extensions().get::<Principal>(), Some(&record.owner.by(record.id)), "for the listener");
        tokens.learn(vec![TokenRecord { revoked_unix_ms: Some(1), ..record.clone() }]);
        assert_eq!(router.oneshot(late).await.expect("an answer").status(), StatusCode::UNAUTHORIZED);
    }

    #[tokio::test(start_paused = true)]
    async fn stream_of_a_token_that_ends_while_it_is_opened_ends() {
        let tokens = Arc::new(Tokens::unstored(Arc::new(SystemClock)));
        let record = TokenRecord { prefix: "mcps_".to_owned(), digest: digest(b"secret"), ..blank_record() };
        tokens.learn(vec![record.clone()]);
        let (ending, ended) = (Arc::clone(&tokens), TokenRecord { revoked_unix_ms: Some(1), ..record });
        let opens = move || {
            ending.learn(vec![ended.clone()]);
            async { Body::from_stream(stream::pending::<Result<Bytes, Infallible>>()) }
        };
        let layer = middleware::from_fn_with_state(tokens, bearer);
        let router = Router::new().route("/v1/runners", get(opens)).layer(layer);
        let request = axum::http::Request::get("/v1/runners").header(header::AUTHORIZATION, "Bearer secret");
        let answer = router.oneshot(request.body(Body::empty()).expect("a request")).await.expect("an answer");
        let read = timeout(Duration::from_mins(1), to_bytes(answer.into_body(), usize::MAX)).await;
        assert!(read.is_ok(), "it does not end");
    }
}
