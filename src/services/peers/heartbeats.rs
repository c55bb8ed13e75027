//! The heartbeats of the other servers: which of them live, by this server's clock alone.

use std::collections::HashMap;

use tokio::time::Instant;

use super::{DEAD_AFTER, FORGOTTEN_AFTER, Peer};
use crate::domain::{InstanceId, Moment};

/// The last beat of each other server, and since when it is the same.
#[derive(Default)]
pub(super) struct Heartbeats {
    /// When this server's own last beat began.
    pub own: Option<Moment>,
    /// When they were last read.
    read: Option<Instant>,
    seen: HashMap<InstanceId, (i64, Instant)>,
}

impl Heartbeats {
    /// The others that live, and those that are dead with the beat that did not change.
    pub fn alive(&mut self, all: Vec<(Peer, i64)>, me: InstanceId) -> (Vec<Peer>, Vec<(InstanceId, i64)>) {
        let now = Instant::now();
        // What did not change while nothing was read may have: it has another chance.
        let was_away = self.read.replace(now).is_none_or(|read| now - read > DEAD_AFTER / 2);
        let mut seen = HashMap::new();
        let (mut alive, mut dead) = (Vec::new(), Vec::new());
        for (peer, beat) in all.into_iter().filter(|(peer, _)| peer.instance != me) {
            let last = self.seen.get(&peer.instance).filter(|(last, _)| *last == beat);
            let since = last.filter(|_| !was_away).map_or(now, |(_, since)| *since);
            seen.insert(peer.instance, (beat, since));
            if since.elapsed() < DEAD_AFTER {
                alive.push(peer);
            } else {
                dead.push((peer.instance, beat));
            }
        }
        self.seen = seen;
        (alive, dead)
    }

    /// Those whose beat has been the same for [`FORGOTTEN_AFTER`].
    pub fn forgotten(&self) -> Vec<(InstanceId, i64)> {
        let long = self.seen.iter().filter(|(_, (_, since))| since.elapsed() >= FORGOTTEN_AFTER);
        long.map(|(instance, (beat, _))| (*instance, *beat)).collect()
    }
}
