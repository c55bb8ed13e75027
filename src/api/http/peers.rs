//! Several servers behind one address: a request for a conversation, run or session of another server is sent there,
//! and its answer comes back unchanged. The other server checks the token again, so servers need not trust each other.
//!
//! ```text
//! request ─ answered here ─┬─ begins something in a conversation that is not held ─ take it ─┬─ here: answered again
//!                          │                                                                └─ sent to who has it
//!                          ├─ lists what is in memory ─ each of the others is asked for its part
//!                          └─ does not know a run, a session, a container ─ sent to each of the others, until one does
//! ```
//!
//! An answer that leads to either has begun nothing, so the request can be answered again. A request takes at most two
//! hops: to the server that has the client's MCP session, and from there to the one that has the conversation. Without
//! other servers this middleware does nothing.

mod lists;

use std::{io, sync::Arc, time::Duration};

use axum::{
    body::{Body, HttpBody as _},
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header, request::Parts, uri::PathAndQuery},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures_util::{
    StreamExt as _,
    stream::{self, Stream},
};
use hyper::upgrade::OnUpgrade;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use tokio::{io::copy_bidirectional, time::timeout};
use tracing::{debug, warn};

use self::lists::List;
use super::{Reply, body::Bodies, e2b, error::ApiError, openai};
use crate::{
    domain::{Code, ConversationKey, Failure, Principal, RunId},
    services::{
        peers::{DEAD_AFTER, Peer, Peers},
        shares::Shares,
    },
};

/// How often a request was sent on. A client that sends this header itself gains nothing: its request is only refused
/// earlier.
const SENT_ON: HeaderName = HeaderName::from_static("sandbox-sent-on");
/// Headers of a connection, and not of a request (RFC 9110, 7.6.1).
const OF_CONNECTION: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
const HOPS_MAX: u8 = 2;
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// The silence of a connection after which its other end is asked for a sign of life.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// How long each server may take to answer whether it knows a run, and what it has of a list.
const FIND_MAX: Duration = Duration::from_secs(3);
/// Lists of one owner that are put together at once: those of all servers are in memory then. More wait.
const LISTS_MAX: usize = 4;
/// When to try again while a server does not answer, in seconds.
const RETRY_AFTER_S: u64 = 5;

/// An extension of a request: what is not in this server's memory may be in another's, so a handler answers that it is
/// unknown and does not look into the history.
#[derive(Debug, Clone, Copy)]
pub struct MayBeElsewhere;

/// Sends requests to the other servers. A clone shares its connections.
#[derive(Clone)]
pub struct Relay {
    peers: Peers,
    bodies: Bodies,
    client: Client<HttpConnector, Body>,
    lists: Arc<Shares<Principal>>,
}

/// What an answer asks for.
enum Missing {
    Conversation(ConversationKey),
    /// What this server does not know.
    Unknown,
}

impl Relay {
    pub fn new(peers: Peers, bodies: Bodies) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_MAX));
        connector.set_nodelay(true);
        // Keep-alive detects a machine that stops answering. An answer may be late for as long as a run.
        connector.set_keepalive(Some(KEEPALIVE));
        connector.set_keepalive_interval(Some(CONNECT_MAX));
        connector.set_keepalive_retries(Some(3));
        #[cfg(target_os = "linux")]
        connector.set_tcp_user_timeout(Some(DEAD_AFTER));
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Self { peers, bodies, client, lists: Arc::new(Shares::new(LISTS_MAX)) }
    }

    pub fn is_alone(&self) -> bool {
        self.peers.is_alone()
    }

    /// The other server that has a conversation, for what is about to begin in it; `None`: it is here from now on.
    ///
    /// # Errors
    /// [`Code::HeldElsewhere`], for a request that was sent on too often also when another server has it.
    pub async fn holder(&self, headers: &HeaderMap, conversation: &ConversationKey) -> Result<Option<Peer>, Failure> {
        match self.peers.take(conversation).await? {
            Some(peer) if hops(headers) >= HOPS_MAX => Err(no_answer(&peer)),
            peer => Ok(peer),
        }
    }

    /// Makes sure that the conversation of an MCP session of this server is here: it may have been given back while
    /// nothing was in it, and then another server may have it.
    ///
    /// # Errors
    /// [`Code::HeldElsewhere`] when another server has it.
    pub async fn check_is_here(&self, headers: &HeaderMap, conversation: &ConversationKey) -> Result<(), Failure> {
        if self.holder(headers, conversation).await?.is_none() {
            return Ok(());
        }
        let why = "The conversation of this session is in use at another server: try again in a moment.";
        Err(Failure::new(Code::HeldElsewhere, why).retry_after(RETRY_AFTER_S))
    }

    /// Which of the others knows a run of the caller that sent these headers.
    pub async fn find_run(&self, headers: &HeaderMap, run: RunId) -> Option<Peer> {
        let others = if hops(headers) > 0 { Vec::new() } else { self.peers.others() };
        for peer in others {
            let mut head = Request::new(()).into_parts().0;
            head.uri = format!("/v1/runs/{run}").parse().ok()?;
            head.headers = headers.clone();
            head.headers.remove(header::CONTENT_TYPE);
            let answer = timeout(FIND_MAX, self.send(&peer, &head, Bytes::new())).await;
            if answer.is_ok_and(|answer| answer.is_ok_and(|answer| answer.status() == StatusCode::OK)) {
                return Some(peer);
            }
        }
        None
    }

    /// Sends a request to a server, and its answer back.
    ///
    /// # Errors
    /// [`Code::HeldElsewhere`] when it does not answer and has begun nothing, [`Code::ServerLost`] when it may have.
    pub async fn send(&self, peer: &Peer, head: &Parts, body: impl Into<Body>) -> Result<Response, Failure> {
        let upgrade = head.headers.get(header::UPGRADE).cloned();
        let mut request = Request::new(body.into());
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = at(peer, &head.uri).ok_or_else(|| no_answer(peer))?;
        *request.headers_mut() = of_message(&head.headers);
        // The length of what is sent here is the body's own.
        request.headers_mut().remove(header::CONTENT_LENGTH);
        request.headers_mut().insert(SENT_ON, HeaderValue::from(u16::from(hops(&head.headers)) + 1));
        if let Some(protocol) = &upgrade {
            request.headers_mut().insert(header::UPGRADE, protocol.clone());
            request.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        }
        debug!(peer = %peer.instance, path = head.uri.path(), "a request is sent on");
        let unanswered = || if head.method.is_safe() { no_answer(peer) } else { unknown_result(peer) };
        let answer = tokio::select! {
            answer = self.client.request(request) => answer.map_err(|error| {
                warn!(peer = %peer.instance, %error, "another server does not answer");
                if error.is_connect() { no_answer(peer) } else { unanswered() }
            }),
            // A server that froze keeps its connections.
            () = self.peers.dead(peer.instance) => {
                warn!(peer = %peer.instance, "another server died before it answered");
                Err(unanswered())
            }
        };
        let mut answer = answer?;
        let kept = of_message(answer.headers());
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some((client, protocol)) = head.extensions.get::<OnUpgrade>().cloned().zip(upgrade)
        {
            let server = hyper::upgrade::on(&mut answer);
            let gone = self.dead(peer);
            tokio::spawn(async move {
                tokio::select! {
                    () = copy_upgraded(client, server) => {}
                    () = gone => {}
                }
            });
            let mut response = StatusCode::SWITCHING_PROTOCOLS.into_response();
            *response.headers_mut() = kept;
            response.headers_mut().insert(header::UPGRADE, protocol);
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            return Ok(response);
        }
        let (mut head, body) = answer.into_parts();
        head.headers = kept;
        // A stream: its length is announced, but its bytes are not here yet.
        Ok(Response::from_parts(head, Body::from_stream(self.rest(peer, Body::new(body)))))
    }

    /// Returns when a server counts as dead.
    fn dead(&self, peer: &Peer) -> impl Future<Output = ()> + Send + use<> {
        let (peers, instance) = (self.peers.clone(), peer.instance);
        async move { peers.dead(instance).await }
    }

    /// The body of an answer. It breaks off when its server counts as dead: one that froze keeps its connections.
    fn rest(&self, peer: &Peer, body: Body) -> impl Stream<Item = Result<Bytes, axum::Error>> + Send + use<> {
        let start = (body.into_data_stream(), Box::pin(self.dead(peer)));
        stream::try_unfold(start, |(mut body, mut gone)| async move {
            let piece = tokio::select! {
                biased;
                piece = body.next() => piece.transpose()?,
                () = gone.as_mut() => return Err(axum::Error::new(io::Error::from(io::ErrorKind::TimedOut))),
            };
            Ok(piece.map(|piece| (piece, (body, gone))))
        })
    }
}

/// Answers a request here, or sends it to the server that has its conversation, run or session.
pub(super) async fn send_on(State(relay): State<Relay>, request: Request, next: Next) -> Reply {
    if relay.is_alone() {
        return Ok(next.run(request).await);
    }
    let is_kept = can_be_repeated(&request, relay.bodies.bytes_max());
    let (mut head, body) = request.into_parts();
    if !is_kept {
        let peer = match container(&head) {
            Some(container) => relay.holder(&head.headers, &container).await?,
            None => None,
        };
        return Ok(match peer {
            Some(peer) => relay.send(&peer, &head, body).await?,
            None => next.run(Request::from_parts(head, body)).await,
        });
    }
    let body = relay.bodies.read(&head.headers, body).await?;
    let (sent_on, others) = (hops(&head.headers) > 0, relay.peers.others());
    if sent_on || !others.is_empty() {
        head.extensions.insert(MayBeElsewhere);
    }
    let again = |head: &Parts| Request::from_parts(head.clone(), Body::from(body.clone()));
    if let Some(list) = List::of(&head).filter(|_| !sent_on && !others.is_empty()) {
        let who = head.extensions.get::<Principal>().cloned().unwrap_or_default();
        let _turn = relay.lists.of(&who).acquire_owned().await;
        let asked = list.asked(&head);
        let own = next.run(again(&asked)).await;
        return Ok(list.merged(&relay, (&head, &asked), &others, own).await);
    }
    let answer = next.clone().run(again(&head)).await;
    // It may name a conversation, which the client may then ask another server for.
    relay.peers.stored().await;
    match missing(&head, &answer) {
        Some(Missing::Conversation(conversation)) => match relay.holder(&head.headers, &conversation).await? {
            None => Ok(next.run(again(&head)).await),
            Some(peer) => Ok(relay.send(&peer, &head, body.clone()).await?),
        },
        Some(Missing::Unknown) if !sent_on && !others.is_empty() => {
            let mut unanswered = None;
            for peer in others {
                match relay.send(&peer, &head, body.clone()).await {
                    Ok(answer) if answer.status() != StatusCode::NOT_FOUND => return Ok(answer),
                    // It may have done what was asked, unless one of the rest knows what the request is about.
                    Err(failure) if failure.code == Code::ServerLost => unanswered = Some(failure),
                    // What a dead server had is in the history.
                    _ => {}
                }
            }
            if let Some(failure) = unanswered {
                return Err(failure.into());
            }
            head.extensions.remove::<MayBeElsewhere>();
            Ok(next.run(again(&head)).await)
        }
        _ => Ok(answer),
    }
}

/// Whether a request is short enough to be kept. Longer ones are files, which are in the folder that all servers share;
/// for those of a [`container`], which one server knows, it is found before they are sent.
fn can_be_repeated(request: &Request, bytes_max: usize) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let is_json = kind.is_some_and(|kind| kind.starts_with(b"application/json"));
    let path = request.uri().path();
    let is_input = path.starts_with("/v1/runs/") && path.ends_with("/stdin");
    let is_short = request.body().size_hint().upper().is_some_and(|upper| upper <= bytes_max as u64);
    // JSON and input of any length are read whole by who answers them.
    is_json || is_input || (is_short && request.method() != Method::PUT)
}

/// The container that files are uploaded to over E2B's or OpenAI's interface.
fn container(head: &Parts) -> Option<ConversationKey> {
    let path = head.uri.path();
    let id = if path.strip_prefix(e2b::ROOT) == Some("/files") {
        head.headers.get(e2b::SANDBOX)?.to_str().ok()?
    } else {
        path.strip_prefix(openai::ROOT)?.strip_prefix("/containers/")?.strip_suffix("/files")?
    };
    Some(ConversationKey::new(head.extensions.get::<Principal>()?.clone(), id.parse().ok()?))
}

fn missing(head: &Parts, answer: &Response) -> Option<Missing> {
    let failure = answer.extensions().get::<ApiError>().map(|error| &error.failure);
    if let Some(conversation) = failure.and_then(|failure| failure.conversation.as_deref()) {
        return Some(Missing::Conversation(conversation.clone()));
    }
    let codes = [Code::RunNotFound, Code::SessionNotFound, Code::ConversationNotFound];
    let is_unknown = failure.is_some_and(|failure| codes.contains(&failure.code));
    // A session of MCP.
    let is_session = answer.status() == StatusCode::NOT_FOUND && head.headers.contains_key("mcp-session-id");
    (is_unknown || is_session).then_some(Missing::Unknown)
}

fn hops(headers: &HeaderMap) -> u8 {
    let value = headers.get(SENT_ON).map(|hops| hops.to_str().ok().and_then(|hops| hops.parse().ok()));
    value.map_or(0, |hops| hops.unwrap_or(HOPS_MAX))
}

fn no_answer(peer: &Peer) -> Failure {
    debug!(peer = %peer.instance, "the server that a request is for does not answer");
    let why = "Another server has the conversation or run of this request and does not answer: try again in a moment.";
    Failure::new(Code::HeldElsewhere, why).retry_after(RETRY_AFTER_S)
}

/// A request that a server may have begun, and did not answer.
fn unknown_result(peer: &Peer) -> Failure {
    debug!(peer = %peer.instance, "the result of a forwarded request is unknown");
    let why = "The server that has this conversation ended before it answered, so it is unknown what became of the \
        request. Look at the files before you send it again.";
    Failure::new(Code::ServerLost, why)
}

/// The address of a request at another server.
fn at(peer: &Peer, uri: &Uri) -> Option<Uri> {
    let base: Uri = peer.url.parse().ok()?;
    let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    format!("http://{}{path}", base.authority()?).parse().ok()
}

/// What belongs to a message.
fn of_message(headers: &HeaderMap) -> HeaderMap {
    let mut kept = headers.clone();
    for name in OF_CONNECTION {
        kept.remove(name);
    }
    kept
}

/// Carries what a WebSocket carries, until either end closes.
async fn copy_upgraded(client: OnUpgrade, server: OnUpgrade) {
    if let (Ok(client), Ok(server)) = tokio::join!(client, server) {
        let _ = copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(server)).await;
    }
}

#[cfg(test)]
mod tests;
