//! Server-sent events as an answer, for every feed, and the feed of all runs.
//!
//! `GET /mcp/events`: what happens to all runs of the caller, as server-sent events that hold JSON-RPC notifications.
//! Not the stream of a session, which is `GET /mcp`: no handshake, any HTTP client may read it, and it covers the runs
//! of every surface. The stream pulls from the feed, so a reader that is slow or never reads costs only a cursor; a
//! notification counts the events that it missed. The feed begins anew with each connection, and a client that sends
//! `Last-Event-ID` first gets a notification that events may be missing.

use std::{convert::Infallible, time::Duration};

use axum::{
    extract::State,
    http::HeaderMap,
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::{Stream, StreamExt as _, stream};
use serde_json::json;

use crate::{api::schema::event::FeedNotice, domain::Principal, services::runs::Runs};

/// A comment is sent into a silent stream this often, so that no proxy closes it.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) fn answer(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    let events = Sse::new(events.map(Ok::<_, Infallible>)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    // Some proxies collect an answer before they pass it on.
    ([("cache-control", "no-store, no-transform"), ("x-accel-buffering", "no")], events).into_response()
}

pub(super) async fn feed(State(runs): State<Runs>, who: Principal, headers: HeaderMap) -> Response {
    let comes_back = headers.contains_key("last-event-id").then_some(FeedNotice::Missed { notices: None });
    // Subscribed to before the answer begins: a client that has its head misses nothing.
    let feed = runs.feed(&who).map(|item| FeedNotice::from(&item));
    answer(stream::iter(comes_back).chain(feed).map(|notice| message(&notice)))
}

fn message(notice: &FeedNotice) -> Event {
    let notification = json!({"jsonrpc": "2.0", "method": notice.method(), "params": notice});
    let event = Event::default().data(notification.to_string());
    match notice {
        FeedNotice::Run { run_id, event: happened, .. } => event.id(format!("{run_id}:{}", happened.number)),
        FeedNotice::Missed { .. } => event,
    }
}
