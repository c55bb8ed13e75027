//! Server-sent events as an answer, for every feed.

use std::{convert::Infallible, time::Duration};

use axum::response::{
    IntoResponse, Response,
    sse::{Event, KeepAlive, Sse},
};
use futures_util::{Stream, StreamExt as _};

/// A comment is sent into a silent stream this often, so that no proxy closes it.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) fn answer(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    let events = Sse::new(events.map(Ok::<_, Infallible>)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    // Some proxies collect an answer before they pass it on.
    ([("cache-control", "no-store, no-transform"), ("x-accel-buffering", "no")], events).into_response()
}
