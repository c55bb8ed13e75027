//! The messages of streams: each has a log, whose readers have their own positions in it. How much is kept of the
//! streams that have ended is bounded for all sessions together, and an owner has half of that.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Weak},
};

use futures_util::{Stream, stream};
use rmcp::transport::streamable_http_server::session::ServerSseMessage;
use tokio::sync::watch;

use crate::domain::Principal;

/// Messages before the answer that a stream keeps: the newest.
const MESSAGES_MAX: usize = 64;
/// Ended streams of all sessions together, in bytes of JSON: the newest.
const ENDED_BYTES_MAX: usize = 32 << 20;
/// What an ended stream counts as, at least, in bytes.
const ENDED_BYTES_MIN: usize = 8 << 10;

/// The messages of one stream.
pub(super) type Log = watch::Sender<Events>;

#[derive(Default)]
pub(super) struct Events {
    /// How many were dropped before `kept`.
    dropped: u64,
    pub kept: VecDeque<ServerSseMessage>,
    pub complete: bool,
}

/// Those that still have their messages, by their owners.
#[derive(Default)]
pub(super) struct EndedStreams(HashMap<Principal, OwnerStreams>);

/// Those of one owner, the newest last, and what each counts as.
#[derive(Default)]
struct OwnerStreams {
    logs: VecDeque<(Weak<Log>, usize)>,
    bytes: usize,
}

impl Events {
    pub(super) fn add(&mut self, mut event: ServerSseMessage, stream: u64) {
        event.event_id = Some(format!("{}/{stream}", self.end()));
        self.kept.push_back(event);
        if self.kept.len() > MESSAGES_MAX {
            self.kept.pop_front();
            self.dropped += 1;
        }
    }

    fn end(&self) -> u64 {
        self.dropped + self.kept.len() as u64
    }

    /// The event with this number, or the first after it that is kept; with its number.
    fn at(&self, number: u64) -> Option<(u64, ServerSseMessage)> {
        let number = number.max(self.dropped);
        let index = usize::try_from(number - self.dropped).ok()?;
        self.kept.get(index).map(|event| (number, event.clone()))
    }
}

impl EndedStreams {
    /// Adds one that has ended with so many bytes. Beyond the bounds, the oldest are emptied: of its owner beyond half,
    /// then of the owner who has the most.
    pub(super) fn add(&mut self, owner: &Principal, log: &Arc<Log>, bytes: usize) {
        let bytes = bytes.max(ENDED_BYTES_MIN);
        let own = self.0.entry(owner.clone()).or_default();
        own.logs.push_back((Arc::downgrade(log), bytes));
        own.bytes += bytes;
        own.keep_half();
        if self.bytes() <= ENDED_BYTES_MAX {
            return;
        }
        for ended in self.0.values_mut() {
            ended.forget_dropped();
        }
        self.0.retain(|_, ended| !ended.logs.is_empty());
        while self.bytes() > ENDED_BYTES_MAX {
            let Some(most) = self.0.values_mut().max_by_key(|ended| ended.bytes) else { return };
            most.empty_oldest();
        }
    }

    fn bytes(&self) -> usize {
        self.0.values().map(|ended| ended.bytes).sum()
    }
}

impl OwnerStreams {
    /// Keeps what an owner may have of all.
    fn keep_half(&mut self) {
        if self.bytes > ENDED_BYTES_MAX / 2 {
            self.forget_dropped();
        }
        while self.bytes > ENDED_BYTES_MAX / 2 && !self.logs.is_empty() {
            self.empty_oldest();
        }
    }

    /// Logs are dropped with their session, or as the oldest of it.
    fn forget_dropped(&mut self) {
        self.logs.retain(|(log, _)| log.strong_count() > 0);
        self.bytes = self.logs.iter().map(|(_, bytes)| bytes).sum();
    }

    fn empty_oldest(&mut self) {
        let Some((log, bytes)) = self.logs.pop_front() else { return };
        self.bytes -= bytes;
        if let Some(log) = log.upgrade() {
            log.send_modify(|events| {
                events.dropped = events.end();
                events.kept.clear();
            });
        }
    }
}

/// The events from this number on, as they come; ends after the last.
pub(super) fn read(log: &Log, from: u64) -> impl Stream<Item = ServerSseMessage> + Send + Sync + 'static + use<> {
    stream::unfold((log.subscribe(), from), |(mut events, next)| async move {
        loop {
            let (found, complete) = {
                let events = events.borrow_and_update();
                (events.at(next), events.complete)
            };
            match found {
                Some((number, event)) => return Some((event, (events, number + 1))),
                None if complete => return None,
                // The log is dropped with its session.
                None => events.changed().await.ok()?,
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn ended(streams: &mut EndedStreams, owner: &Principal, bytes: usize) -> Arc<Log> {
        let log = Arc::new(Log::default());
        log.send_modify(|events| events.add(ServerSseMessage::priming("", Duration::ZERO), 1));
        streams.add(owner, &log, bytes);
        log
    }

    fn kept(logs: &[Arc<Log>]) -> usize {
        logs.iter().filter(|log| !log.borrow().kept.is_empty()).count()
    }

    #[test]
    fn ended_streams_of_one_owner_empty_none_of_one_who_has_less() {
        let [ann, bob, carl] = ["ann", "bob", "carl"].map(|name| name.parse::<Principal>().expect("an owner"));
        let mut streams = EndedStreams::default();
        let hers = [ended(&mut streams, &ann, 0)];
        // Those that their sessions dropped count no longer.
        for _ in 0..10_000 {
            drop(ended(&mut streams, &bob, 1 << 20));
        }
        let his: Vec<_> = (0..3000).map(|_| ended(&mut streams, &bob, 0)).collect();
        assert_eq!((kept(&hers), kept(&his)), (1, 2048));
        assert_eq!(kept(&his[..952]), 0, "the oldest ones");
        let of_carl: Vec<_> = (0..100).map(|_| ended(&mut streams, &carl, 1 << 20)).collect();
        assert_eq!(kept(&hers), 1);
        assert!(kept(&his) >= 2047 && kept(&of_carl) >= 15, "{}, {}", kept(&his), kept(&of_carl));
        assert!(streams.bytes() <= ENDED_BYTES_MAX);
    }
}
