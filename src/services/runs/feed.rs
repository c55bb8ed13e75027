//! What happens to all runs of a caller, as one stream that is pulled.
//!
//! Readers are sent notices of a few words, in a ring of fixed size, and fetch the events from the runs' logs themselves:
//! a reader that stops reading keeps nothing alive. One that is overtaken by the ring is told so; it goes on with the
//! runs it knows where it stopped, as far as their logs still have it.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Weak},
};

use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio_util::sync::CancellationToken;

use super::Entry;
use crate::domain::{
    event::Event,
    id::RunId,
    owner::{ConversationKey, Principal},
};

/// One thing that is told to a reader of the feed.
#[derive(Debug, Clone)]
pub enum FeedItem {
    /// Something happened to a run.
    Event {
        /// Which.
        run: RunId,
        /// Whose files are `/data`.
        conversation: ConversationKey,
        /// What.
        event: Event,
    },
    /// The reader was too slow, and runs may have begun and ended that it will not hear of: a list of runs names them.
    Missed {
        /// How many notices went by.
        notices: u64,
    },
}

/// Something is new in a run's log.
#[derive(Clone)]
pub(super) struct Notice {
    run: RunId,
    entry: Weak<Entry>,
    /// The first number that was not told of before.
    from: u64,
    /// No other notice of this run follows.
    last: bool,
}

impl Notice {
    pub(super) fn new(entry: &Arc<Entry>, from: u64, last: bool) -> Self {
        Self { run: entry.run.id, entry: Arc::downgrade(entry), from, last }
    }
}

struct Reader {
    notices: Receiver<Notice>,
    principal: Principal,
    over: CancellationToken,
    /// What must be looked at before another notice is taken.
    waiting: VecDeque<Notice>,
    /// The next number of each run that is under way.
    cursors: HashMap<RunId, (u64, Weak<Entry>)>,
}

pub(super) fn stream(
    notices: Receiver<Notice>,
    principal: Principal,
    over: CancellationToken,
) -> BoxStream<'static, FeedItem> {
    let reader = Reader { notices, principal, over, waiting: VecDeque::new(), cursors: HashMap::new() };
    stream::unfold(reader, |mut reader| async move { reader.next().await.map(|item| (item, reader)) }).boxed()
}

impl Reader {
    async fn next(&mut self) -> Option<FeedItem> {
        loop {
            while let Some(notice) = self.waiting.front() {
                let notice = notice.clone();
                if let Some(item) = self.look(&notice) {
                    return Some(item);
                }
                self.waiting.pop_front();
                if notice.last {
                    self.cursors.remove(&notice.run);
                }
            }
            let notice = tokio::select! {
                biased;
                notice = self.notices.recv() => notice,
                () = self.over.cancelled() => return None,
            };
            match notice {
                Ok(notice) => self.waiting.push_back(notice),
                Err(RecvError::Lagged(notices)) => return Some(self.missed(notices)),
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// The next event that this notice leads to.
    fn look(&mut self, notice: &Notice) -> Option<FeedItem> {
        let Some(entry) = notice.entry.upgrade() else {
            // It is no longer kept: whatever was not read of it is gone.
            self.cursors.remove(&notice.run);
            return None;
        };
        if entry.conversation.owner != self.principal {
            return None;
        }
        let (cursor, _) = self.cursors.entry(notice.run).or_insert_with(|| (notice.from, Weak::clone(&notice.entry)));
        let event = entry.run.log.next(*cursor)?;
        *cursor = event.number + 1;
        Some(FeedItem::Event { run: notice.run, conversation: entry.conversation.clone(), event })
    }

    /// Every run that is known is looked at again: its last notice may be among those that went by.
    fn missed(&mut self, notices: u64) -> FeedItem {
        self.cursors.retain(|_, (_, entry)| entry.strong_count() > 0);
        for (run, (from, entry)) in &self.cursors {
            // Not the last, whatever it leads to: the run's own last notice may still come, and finds the cursor here.
            self.waiting.push_back(Notice { run: *run, entry: Weak::clone(entry), from: *from, last: false });
        }
        FeedItem::Missed { notices }
    }
}
