//! `GET /mcp/events`: what happens to all runs of the caller, as server-sent events that hold JSON-RPC notifications.
//!
//! Not the stream of a session, which is `GET /mcp`: no handshake, any HTTP client may read it, and it tells of runs that
//! were begun by any surface. The stream pulls from the feed, so a reader that is slow or never reads costs a cursor;
//! what it missed meanwhile is told by a notification. The feed begins anew with each connection, and who comes back
//! with a `Last-Event-ID` is told first that something may be missing.

use std::{convert::Infallible, time::Duration};

use axum::{
    Extension,
    extract::State,
    http::{HeaderMap, HeaderValue, header},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::{StreamExt as _, stream};
use serde_json::json;

use crate::domain::owner::Principal;
use crate::{api::schema::report::FeedNotice, services::runs::Runs};

/// RunnerMessage into a silent stream, so that no proxy takes it for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) async fn watch(
    State(runs): State<Runs>,
    Extension(who): Extension<Principal>,
    headers: HeaderMap,
) -> Response {
    let comes_back = headers.contains_key("last-event-id").then_some(FeedNotice::Missed { notices: None });
    // Subscribed to before the answer begins: whoever has its head misses nothing.
    let feed = runs.feed(&who).map(|item| FeedNotice::from(&item));
    let notices = stream::iter(comes_back).chain(feed).map(|notice| Ok::<_, Infallible>(message(&notice)));
    let mut response = Sse::new(notices).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store, no-transform"));
    // Some proxies collect an answer before they pass it on.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn message(notice: &FeedNotice) -> Event {
    let told = json!({"jsonrpc": "2.0", "method": notice.method(), "params": notice});
    let event = Event::default().data(told.to_string());
    match notice {
        FeedNotice::Run { run_id, event: happened, .. } => event.id(format!("{run_id}:{}", happened.number)),
        FeedNotice::Missed { .. } => event,
    }
}
