//! The events of all runs of a caller, as one stream that is pulled.
//!
//! Readers receive notices of a few words through a ring of fixed size and fetch the events from the runs' logs: a
//! reader that stops reading keeps nothing alive. One that the ring overtakes gets a `Missed` item; it goes on with the
//! runs it knows where it stopped, as far as their logs still hold it. Each owner has a ring: the runs of others
//! neither overtake its readers nor are among what they missed.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio_util::sync::CancellationToken;

use super::Run;
use crate::{
    domain::{ConversationKey, Event, Principal, RunId, clock::every},
    services::shares::Rings,
};

/// How often a running program is logged as being under way.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);
/// How many notices a reader may be behind before it misses some.
const NOTICES_MAX: usize = 4096;

/// An item of the feed.
#[derive(Debug, Clone)]
pub enum FeedItem {
    /// An event of a run.
    Event { run: RunId, conversation: ConversationKey, event: Event },
    /// The reader was too slow. Runs may have begun and ended without an item: a list of runs names them.
    Missed {
        /// How many notices were lost.
        notices: u64,
    },
}

/// A run's log has new events.
#[derive(Clone)]
struct Notice {
    id: RunId,
    run: Weak<Run>,
    /// The number of the first event that no notice covered before.
    from: u64,
    /// No other notice of this run follows.
    last: bool,
}

/// Where runs are announced.
pub(super) struct Feed {
    rings: Rings<Notice>,
    closed: CancellationToken,
}

impl Default for Feed {
    fn default() -> Self {
        Self { rings: Rings::new(NOTICES_MAX), closed: CancellationToken::new() }
    }
}

impl Feed {
    /// Announces a run's events to the last one, and logs now and then that the program is under way.
    pub(super) async fn follow(&self, run: &Arc<Run>) {
        let mut newest = run.log.subscribe();
        let mut ticks = every(PROGRESS_EVERY);
        ticks.reset();
        let mut announced = 0;
        loop {
            newest.mark_unchanged();
            let facts = run.log.facts();
            let last = facts.ended_at.is_some();
            if facts.newest > announced {
                let notice = Notice { id: run.id, run: Arc::downgrade(run), from: announced + 1, last };
                self.rings.send(&run.conversation.owner, || notice);
                announced = facts.newest;
            }
            if last {
                return;
            }
            tokio::select! {
                changed = newest.changed() => if changed.is_err() { return },
                _ = ticks.tick() => run.log.progress(),
            }
        }
    }

    /// The events of this caller's runs from now on.
    pub(super) fn subscribe(&self, principal: &Principal) -> BoxStream<'static, FeedItem> {
        let notices = self.rings.subscribe(principal);
        let (closed, pending, cursors) = (self.closed.clone(), VecDeque::new(), HashMap::new());
        let reader = Reader { notices, closed, pending, cursors };
        stream::unfold(reader, |mut reader| async move { reader.next().await.map(|item| (item, reader)) }).boxed()
    }

    /// Ends all streams.
    pub(super) fn close(&self) {
        self.closed.cancel();
    }
}

struct Reader {
    notices: Receiver<Notice>,
    closed: CancellationToken,
    /// Read to their end before another notice is received.
    pending: VecDeque<Notice>,
    /// The number of the next event of each run that is under way.
    cursors: HashMap<RunId, (u64, Weak<Run>)>,
}

impl Reader {
    async fn next(&mut self) -> Option<FeedItem> {
        loop {
            while let Some(notice) = self.pending.front().cloned() {
                if let Some(item) = self.next_event(&notice) {
                    return Some(item);
                }
                self.pending.pop_front();
                if notice.last {
                    self.cursors.remove(&notice.id);
                }
            }
            let notice = tokio::select! {
                biased;
                notice = self.notices.recv() => notice,
                () = self.closed.cancelled() => return None,
            };
            match notice {
                Ok(notice) => self.pending.push_back(notice),
                Err(RecvError::Lagged(notices)) => return Some(self.missed(notices)),
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// The next event that this notice covers.
    fn next_event(&mut self, notice: &Notice) -> Option<FeedItem> {
        let Some(run) = notice.run.upgrade() else {
            // The run is no longer kept, and its unread events are gone with it.
            self.cursors.remove(&notice.id);
            return None;
        };
        let (cursor, _) = self.cursors.entry(notice.id).or_insert_with(|| (notice.from, Weak::clone(&notice.run)));
        let event = run.log.next(*cursor)?;
        *cursor = event.number + 1;
        Some(FeedItem::Event { run: notice.id, conversation: run.conversation.clone(), event })
    }

    /// Every known run is read again: its last notice may be among the lost ones.
    fn missed(&mut self, notices: u64) -> FeedItem {
        self.cursors.retain(|_, (_, run)| run.strong_count() > 0);
        for (id, (from, run)) in &self.cursors {
            // Not `last`: the run's own last notice may still come and then needs the cursor.
            self.pending.push_back(Notice { id: *id, run: Weak::clone(run), from: *from, last: false });
        }
        FeedItem::Missed { notices }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn what_other_owners_do_makes_no_reader_miss_anything() {
        let feed = Feed::default();
        let [ann, bob]: [Principal; 2] = ["ann", "bob"].map(|name| name.parse().expect("an owner"));
        let (mut of_ann, mut of_bob) = (feed.subscribe(&ann), feed.subscribe(&bob));
        for _ in 0..=NOTICES_MAX {
            let notice = Notice { id: RunId::new(), run: Weak::new(), from: 1, last: true };
            feed.rings.send(&bob, || notice);
        }
        assert!(of_ann.next().now_or_never().is_none());
        assert!(matches!(of_bob.next().await, Some(FeedItem::Missed { notices: 1 })));
    }
}
