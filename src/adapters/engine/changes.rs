//! The stream that reports that an engine's runners may have changed. Spawns nothing; the stream reconnects inside its
//! own polling and ends when it is dropped.

use std::time::Duration;

use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use tokio::time::{Instant, sleep, timeout_at};

/// One build or removal causes several events, which become one item.
const SETTLE: Duration = Duration::from_millis(100);
const PAUSE_FIRST: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// The events of one connection; `false` is its end, as the end of the stream is.
pub(super) type Events = BoxStream<'static, bool>;

/// One item for each opened connection, since changes may have been missed before it, and one for each group of events.
/// `open` is called for each connection; `None`: it could not be opened.
pub(super) fn changes<F>(open: impl FnMut() -> F + Send + 'static) -> BoxStream<'static, ()>
where
    F: Future<Output = Option<Events>> + Send + 'static,
{
    let start = (open, None::<Events>, Duration::ZERO);
    stream::unfold(start, |(mut open, mut events, mut pause)| async move {
        loop {
            let Some(opened) = &mut events else {
                sleep(pause).await;
                pause = (pause * 2).clamp(PAUSE_FIRST, PAUSE_MAX);
                // A client may connect only when it is polled, and report nothing but a failure.
                if let Some(mut opened) = open().await
                    && settle(&mut opened).await
                {
                    return Some(((), (open, Some(opened), pause)));
                }
                continue;
            };
            let is_change = opened.next().await == Some(true);
            if is_change {
                pause = Duration::ZERO;
            }
            if !is_change || !settle(opened).await {
                events = None;
            }
            if is_change {
                return Some(((), (open, events, pause)));
            }
        }
    })
    .boxed()
}

/// Discards the events of a short time; false when the connection ended.
async fn settle(events: &mut Events) -> bool {
    let until = Instant::now() + SETTLE;
    loop {
        match timeout_at(until, events.next()).await {
            Ok(Some(true)) => {}
            Ok(Some(false) | None) => return false,
            Err(_) => return true,
        }
    }
}
