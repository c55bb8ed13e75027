//! `GET /mcp/events`: what happens to all runs of the caller, as server-sent events that hold JSON-RPC notifications.
//!
//! Not the stream of a session, which is `GET /mcp`: no handshake, any HTTP client may read it, and it covers the runs
//! of every surface. The stream pulls from the feed, so a reader that is slow or never reads costs only a cursor; a
//! notification counts the events that it missed. The feed begins anew with each connection, and a client that sends
//! `Last-Event-ID` first gets a notification that events may be missing.

use axum::{
    extract::State,
    http::HeaderMap,
    response::{Response, sse::Event},
};
use futures_util::{StreamExt as _, stream};
use serde_json::json;

use crate::{
    api::{http::sse, schema::report::FeedNotice},
    domain::owner::Principal,
    services::runs::Runs,
};

pub(super) async fn watch(State(runs): State<Runs>, who: Principal, headers: HeaderMap) -> Response {
    let comes_back = headers.contains_key("last-event-id").then_some(FeedNotice::Missed { notices: None });
    // Subscribed to before the answer begins: a client that has its head misses nothing.
    let feed = runs.feed(&who).map(|item| FeedNotice::from(&item));
    sse::answer(stream::iter(comes_back).chain(feed).map(|notice| message(&notice)))
}

fn message(notice: &FeedNotice) -> Event {
    let notification = json!({"jsonrpc": "2.0", "method": notice.method(), "params": notice});
    let event = Event::default().data(notification.to_string());
    match notice {
        FeedNotice::Run { run_id, event: happened, .. } => event.id(format!("{run_id}:{}", happened.number)),
        FeedNotice::Missed { .. } => event,
    }
}
