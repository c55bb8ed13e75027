//! A run's events as a stream that is pulled: it holds a cursor, and the log holds the events.

use std::sync::Arc;

use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};

use crate::{domain::event::Event, services::execution::EventLog};

/// Events from this number on; ends after the last one of the run.
pub(super) fn stream(log: Arc<EventLog>, from: u64) -> BoxStream<'static, Event> {
    stream::unfold(from, move |from| {
        let log = Arc::clone(&log);
        async move { next(&log, from).await.map(|event| (event.clone(), event.number.saturating_add(1))) }
    })
    .boxed()
}

/// The next event from this number on, now or later; nothing when there will be none.
async fn next(log: &EventLog, from: u64) -> Option<Event> {
    let mut newest = log.subscribe();
    loop {
        newest.mark_unchanged();
        // In this order: what was added before the end is seen.
        let ended = log.facts().ended_at.is_some();
        if let Some(event) = log.next(from) {
            return Some(event);
        }
        if ended || newest.changed().await.is_err() {
            return None;
        }
    }
}

/// Waits for the last event.
pub(super) async fn ended(log: &EventLog) {
    let mut newest = log.subscribe();
    while log.facts().ended_at.is_none() && newest.changed().await.is_ok() {}
}
