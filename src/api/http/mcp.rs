//! `/mcp`: which of rmcp's three ways of serving a request takes, and what is checked before rmcp sees it.
//!
//! ```text
//! POST ─ headers ─ body (bounded in bytes and time) ─┬─ is for another server: see `destination`
//!                                                    └─ envelope ─┬─ has a session and takes SSE or is no request,
//!                                                                 │  or `initialize` over SSE: sessions
//!                                                                 ├─ takes SSE: stateless, kept alive by comments
//!                                                                 └─ a bare call: stateless, plain JSON
//! GET ─ sessions; DELETE ends one
//! GET /mcp/events ─ the feed of all runs, see [`sse`]
//! rmcp spawns: a task for each session (ends when idle or at shutdown), a task for each stateless request
//! ```
//!
//! Sessions exist for clients of the handshake era, whose `notifications/cancelled` only a session can match to its
//! request. A bare call names no `Accept` that rmcp takes, so the header is repaired. What the query chooses is kept by
//! a session. Errors here are JSON-RPC errors. The caller, hosts and origins were checked before.

mod destination;
mod envelope;
mod sessions;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use bytes::Bytes;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio_util::sync::CancellationToken;

use self::{
    envelope::{
        Envelope, HEADER_MISMATCH, INVALID_REQUEST, answer_batch, as_json_rpc, failed, failed_call, is_batch, refusal,
    },
    sessions::{Manager, Reservation, Session},
};
use crate::{
    api::{
        http::{
            body::{self, Bodies},
            error::ApiError,
            peers::Relay,
            single, sse,
        },
        mcp::{Client, McpParts, McpServer, OpenQuestions, ToolName, View},
        schema::parse::by_size,
    },
    domain::{Failure, Principal},
    services::runs::Runs,
};

/// The margin of a session beyond its longest silence, which is a run that waits in the queue.
const SESSION_MARGIN: Duration = Duration::from_mins(5);
/// Headers that decide what a request means: a repeated one is refused, because readers may choose differently.
const ONCE: [&str; 7] = [
    "content-type",
    "content-length",
    "content-encoding",
    "mcp-session-id",
    "mcp-protocol-version",
    "mcp-method",
    "mcp-name",
];
/// The id of no session: theirs are random.
const NO_SESSION: HeaderValue = HeaderValue::from_static("00000000-0000-0000-0000-000000000000");
const BOTH_KINDS: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");

/// How requests are read.
pub struct McpHttpOptions {
    /// Reads request bodies.
    pub bodies: Bodies,
    /// Sends on what is for another server.
    pub relay: Relay,
    /// Open sessions, and those of one principal.
    pub sessions_max: usize,
    pub principal_sessions_max: usize,
    /// The longest that a call can be silent: waiting in the queue and running.
    pub run_max: Duration,
    /// Ends every stream and session.
    pub shutdown: CancellationToken,
}

type Service = StreamableHttpService<McpServer, Manager>;

struct Endpoint {
    sessions: Service,
    stream: Service,
    plain: Service,
    open: Arc<Manager>,
    /// What clients see if they choose nothing.
    view: View,
    runs: Runs,
    questions: OpenQuestions,
    bodies: Bodies,
    relay: Relay,
}

/// The route. It must be mounted behind a middleware that puts a `Principal` into the request's extensions.
pub fn router(parts: McpParts, options: &McpHttpOptions) -> Router {
    let idle_max = options.run_max + SESSION_MARGIN;
    let manager = Arc::new(Manager::new(idle_max, options.sessions_max, options.principal_sessions_max));
    let (runs, questions, view) = (parts.runs.clone(), parts.questions.clone(), parts.options.view);
    let feed = get(sse::feed).with_state(runs.clone());
    let base = StreamableHttpServerConfig::default()
        .with_sse_retry(None)
        .disable_allowed_hosts()
        .disable_allowed_origins()
        .with_max_request_body_bytes(options.bodies.bytes_max())
        .with_cancellation_token(options.shutdown.clone());
    let parts = Arc::new(parts);
    let service = |config| {
        let parts = Arc::clone(&parts);
        Service::new(move || Ok(McpServer::http(Arc::clone(&parts))), Arc::clone(&manager), config)
    };
    let endpoint = Endpoint {
        sessions: service(base.clone()),
        stream: service(base.clone().with_legacy_session_mode(false)),
        plain: service(base.with_legacy_session_mode(false).with_json_response(true)),
        open: manager,
        view,
        runs,
        questions,
        bodies: options.bodies.clone(),
        relay: options.relay.clone(),
    };
    let methods = post(answer_post).get(answer_get).delete(answer_delete);
    Router::new()
        .route("/mcp", methods.clone())
        .route("/mcp/", methods)
        .with_state(Arc::new(endpoint))
        .route("/mcp/events", feed)
}

/// A session's own stream, or one that its client resumes; and what is refused.
async fn answer_get(State(endpoint): State<Arc<Endpoint>>, request: Request) -> Response {
    let (mut head, body) = request.into_parts();
    if let Some(session) = endpoint.own_session(&mut head) {
        drop(session.in_progress());
    }
    let response = endpoint.sessions.handle(Request::from_parts(head, body)).await.map(Body::new);
    as_json_rpc(response, None).await
}

/// The end of a session. Its calls are given up at once.
async fn answer_delete(State(endpoint): State<Arc<Endpoint>>, request: Request) -> Response {
    let (mut head, body) = request.into_parts();
    endpoint.own_session(&mut head);
    let Some(id) = session_id(&head.headers) else {
        return answer_get(State(endpoint), Request::from_parts(head, body)).await;
    };
    if endpoint.open.end(id).await {
        return StatusCode::OK.into_response();
    }
    let error = refusal(INVALID_REQUEST, None, "There is no such session: it has ended, or never existed.");
    ApiError { status: Some(StatusCode::NOT_FOUND), ..error }.into_response()
}

async fn answer_post(State(endpoint): State<Arc<Endpoint>>, request: Request) -> Response {
    let (mut head, body) = request.into_parts();
    let session = endpoint.own_session(&mut head);
    let taken = async {
        check_headers(&head.headers)?;
        endpoint.check_capacity(&head)?;
        endpoint.add_client(&mut head, session.as_deref())?;
        endpoint.bodies.read(&head.headers, body).await.map_err(failed)
    };
    let answered = match (taken.await, session.as_deref()) {
        (Ok(body), Some(session)) if is_batch(session, &body) => answer_batch(&endpoint, session, &head, &body).await,
        (Ok(body), session) => endpoint.answer(head, session, body).await,
        (Err(error), _) => Err(error),
    };
    answered.unwrap_or_else(IntoResponse::into_response)
}

fn session_id(headers: &HeaderMap) -> Option<&str> {
    headers.get("mcp-session-id").and_then(|id| id.to_str().ok())
}

impl Endpoint {
    /// The session that a request names, if the caller opened it. One of another owner is as unknown as one that never
    /// was: what follows sees an id that no session has.
    fn own_session(&self, head: &mut Parts) -> Option<Arc<Session>> {
        let session = session_id(&head.headers).and_then(|id| self.open.get(id))?;
        if Some(&session.owner) == head.extensions.get::<Principal>() {
            return Some(session);
        }
        head.headers.insert("mcp-session-id", NO_SESSION);
        None
    }

    /// Adds what is known of the client to the request's head.
    fn add_client(&self, head: &mut Parts, session: Option<&Session>) -> Result<(), ApiError> {
        let query = head.uri.query().unwrap_or_default();
        let chosen = || self.view.with_query(query).map_err(|why| refusal(INVALID_REQUEST, None, why + "."));
        let view = session.map_or_else(chosen, |session| Ok(session.view))?;
        let one_answer = !accepts(&head.headers, "text/event-stream");
        // A batch's requests share it with their head.
        if let Some(session) = session {
            head.extensions.insert(session.in_progress());
        }
        let (over, conversation) = session.map(|session| (session.over.clone(), session.conversation.clone())).unzip();
        head.extensions.insert(Client { view, one_answer, session: over, conversation });
        Ok(())
    }

    async fn answer(&self, mut head: Parts, session: Option<&Session>, body: Bytes) -> Result<Response, ApiError> {
        let message = body.clone();
        let envelope = by_size(body.len(), move || Envelope::read(&message)).await?;
        check_method(&head.headers, &envelope)?;
        if envelope.method.is_none() && session_id(&head.headers).is_none() {
            let why = "The body is an answer, and this server asks only in a session: send it with `mcp-session-id`.";
            return Err(refusal(INVALID_REQUEST, envelope.id.as_ref(), why));
        }
        if !self.relay.is_alone()
            && let Some(peer) = self.other_server(&head, session, &body).await
        {
            let refused = |failure| failed_call(failure, envelope.id.as_ref());
            return self.forward(peer.map_err(refused)?, &head, session, body).await.map_err(refused);
        }
        // Held until there is an answer: a session that is being opened is not closed for another.
        let (service, _opening) = self.choose_service(&mut head, session, &envelope).await?;
        let response = service.handle(Request::from_parts(head, Body::from(body))).await.map(Body::new);
        Ok(as_json_rpc(response, envelope.id).await)
    }

    /// Refuses unread a request whose headers announce a new run, when none can begin. Other requests are read first
    /// even then: only the body says what they are, and it may be the cancellation that makes room, or the answer to a
    /// program that waits for it.
    fn check_capacity(&self, head: &Parts) -> Result<(), ApiError> {
        let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let begins_a_run = header("mcp-method") == "tools/call"
            && ToolName::find(header("mcp-name")).is_some_and(ToolName::begins_a_run);
        match head.extensions.get::<Principal>() {
            Some(who) if begins_a_run && !self.questions.has_any_of(&self.runs, who) => {
                self.runs.check_capacity(who).map_err(failed)
            }
            _ => Ok(()),
        }
    }

    /// Counts a request among the calls of its session that have no answer yet.
    fn count(&self, head: &mut Parts, session: &Session, envelope: &Envelope) -> Result<(), ApiError> {
        if let Envelope { method: Some(_), id: Some(id) } = envelope {
            head.extensions.insert(self.open.begin_call(session).map_err(|failure| failed_call(failure, Some(id)))?);
        }
        Ok(())
    }

    /// The service for a request, and the reservation of the session that it opens.
    async fn choose_service(
        &self,
        head: &mut Parts,
        session: Option<&Session>,
        envelope: &Envelope,
    ) -> Result<(&Service, Option<Reservation>), ApiError> {
        let in_session = session_id(&head.headers).is_some();
        let is_request = envelope.method.is_some() && envelope.id.is_some();
        let streams = accepts(&head.headers, "text/event-stream");
        head.headers.insert(header::ACCEPT, BOTH_KINDS);
        // Other messages have no answer, so their session gets them whatever the client accepts.
        if in_session && (streams || !is_request) {
            session.map_or(Ok(()), |session| self.count(head, session, envelope))?;
            return Ok((&self.sessions, None));
        }
        match (streams, envelope.method.as_deref() == Some("initialize"), head.extensions.get::<Principal>()) {
            (true, true, Some(who)) => {
                let reservation = self.open.reserve(who).await.map_err(failed)?;
                head.extensions.insert(reservation.clone());
                Ok((&self.sessions, Some(reservation)))
            }
            (true, ..) => Ok((&self.stream, None)),
            (false, ..) => Ok((&self.plain, None)),
        }
    }
}

fn accepts(headers: &HeaderMap, kind: &str) -> bool {
    headers
        .get_all(header::ACCEPT)
        .iter()
        .any(|value| value.to_str().is_ok_and(|value| value.to_lowercase().contains(kind)))
}

/// A gateway may have let the request pass because of the header. rmcp compares the two only where the
/// protocol's revision has the header.
fn check_method(headers: &HeaderMap, envelope: &Envelope) -> Result<(), ApiError> {
    match headers.get("mcp-method") {
        Some(named) if Some(named.as_bytes()) != envelope.method.as_deref().map(str::as_bytes) => {
            let why = "The header `mcp-method` names another method than the body: send the same.";
            Err(refusal(HEADER_MISMATCH, envelope.id.as_ref(), why))
        }
        _ => Ok(()),
    }
}

fn check_headers(headers: &HeaderMap) -> Result<(), ApiError> {
    for name in ONCE.map(HeaderName::from_static) {
        single(headers, &name).map_err(failed)?;
    }
    let unsupported = |Failure { message, .. }| {
        let error = refusal(INVALID_REQUEST, None, message);
        ApiError { status: Some(StatusCode::UNSUPPORTED_MEDIA_TYPE), ..error }
    };
    body::check_uncompressed(headers).and_then(|()| body::check_is_json(headers)).map_err(unsupported)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers() {
        let check = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, HeaderValue::from_static(value));
            }
            check_headers(&headers).map_err(|error| error.status.map_or(400, |status| status.as_u16()))
        };
        let json = ("content-type", "application/json");
        assert_eq!(check(&[json]), Ok(()));
        assert_eq!(check(&[("content-type", "Application/JSON ; charset=utf-8")]), Ok(()));
        assert_eq!(check(&[json, ("content-encoding", "identity")]), Ok(()));
        for kind in ["", "text/plain", "application/jsonx", "application/x-www-form-urlencoded", "json"] {
            assert_eq!(check(&[("content-type", kind)]), Err(415), "{kind}");
        }
        assert_eq!(check(&[]), Err(415));
        assert_eq!(check(&[json, json]), Err(400));
        assert_eq!(check(&[json, ("content-encoding", "gzip")]), Err(415));
        assert_eq!(check(&[json, ("mcp-session-id", "a"), ("mcp-session-id", "b")]), Err(400));
    }

    #[test]
    fn accepts_reads_every_accept_header() {
        let accepts = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::ACCEPT, HeaderValue::from_static(value));
            }
            accepts(&headers, "text/event-stream")
        };
        assert!(accepts(&["application/json, text/event-stream"]));
        assert!(accepts(&["application/json", "Text/Event-Stream;q=0.5"]));
        assert!(!accepts(&["*/*"]) && !accepts(&[]) && !accepts(&["application/json"]));
    }
}
