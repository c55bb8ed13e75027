//! Which servers live, by this server's clock alone: one that lives changes its heartbeat in the database.

use std::{collections::HashMap, mem::take, time::Duration};

use tokio::time::Instant;

use super::InstanceId;

/// The last beat of each other server, and since when it is the same.
#[derive(Debug, Default)]
pub struct Heartbeats<B> {
    /// When they were last read.
    read: Option<Instant>,
    seen: HashMap<InstanceId, (B, Instant)>,
}

impl<B: PartialEq + Copy> Heartbeats<B> {
    /// Takes the beats that were just read. What did not change while nothing was read for longer than `pause_max` may
    /// have been unable to, as the database was away: it has another chance.
    pub fn note(&mut self, beats: impl Iterator<Item = (InstanceId, B)>, pause_max: Duration) {
        let (now, mut before) = (Instant::now(), take(&mut self.seen));
        if self.read.replace(now).is_none_or(|read| now - read > pause_max) {
            before.clear();
        }
        for (instance, beat) in beats {
            let same = before.remove(&instance).filter(|(last, _)| *last == beat);
            self.seen.insert(instance, same.unwrap_or((beat, now)));
        }
    }

    /// The servers whose beat has been the same for so long, with that beat.
    pub fn unchanged_for(&self, time: Duration) -> Vec<(InstanceId, B)> {
        let long = self.seen.iter().filter(|(_, (_, since))| since.elapsed() >= time);
        long.map(|(instance, (beat, _))| (*instance, *beat)).collect()
    }
}
