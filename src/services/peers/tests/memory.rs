//! A database in memory for tests, which can be away.

use std::{
    collections::{BTreeMap, HashMap},
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::sleep;

use crate::{
    domain::{ConversationKey, InstanceId},
    ports::{
        database::{DatabaseError, DbResult},
        peers::{Peer, PeerStore},
    },
    services::peers::Occupancy,
};

#[derive(Default)]
pub struct Memory {
    pub peers: Mutex<BTreeMap<String, (Peer, i64)>>,
    pub holders: Mutex<HashMap<ConversationKey, (InstanceId, i64)>>,
    pub asked: AtomicUsize,
    pub is_away: AtomicBool,
    /// How long it takes to announce a server.
    pub announce_ms: AtomicU64,
    /// How long it takes to give or to take back a conversation; half of it to answer that it was given.
    pub take_ms: AtomicU64,
    /// How long it takes to take back what a server has.
    pub leave_ms: AtomicU64,
}

impl Memory {
    fn answers(&self) -> DbResult<()> {
        if self.is_away.load(Ordering::Relaxed) { Err(DatabaseError("away".to_owned())) } else { Ok(()) }
    }
}

#[async_trait]
impl PeerStore for Memory {
    async fn announce(&self, me: &Peer, beat: i64) -> DbResult<()> {
        self.answers()?;
        sleep(Duration::from_millis(self.announce_ms.load(Ordering::Relaxed))).await;
        self.peers.lock().insert(me.instance.to_string(), (me.clone(), beat));
        Ok(())
    }

    async fn peers(&self) -> DbResult<Vec<(Peer, i64)>> {
        self.answers()?;
        Ok(self.peers.lock().values().cloned().collect())
    }

    async fn take(
        &self,
        conversation: &ConversationKey,
        by: InstanceId,
        stamp: i64,
        dead: &[(InstanceId, i64)],
    ) -> DbResult<InstanceId> {
        self.answers()?;
        let half = Duration::from_millis(self.take_ms.load(Ordering::Relaxed)) / 2;
        sleep(half).await;
        self.asked.fetch_add(1, Ordering::Relaxed);
        let taken = {
            let mut holders = self.holders.lock();
            let holder = holders.entry(conversation.clone()).or_insert((by, stamp));
            let beat = self.peers.lock().get(&holder.0.to_string()).map(|(_, beat)| *beat);
            if (holder.0 == by && holder.1 < stamp) || beat.is_none_or(|beat| dead.contains(&(holder.0, beat))) {
                *holder = (by, stamp);
            }
            holder.0
        };
        sleep(half).await;
        Ok(taken)
    }

    async fn give_back(&self, conversation: &ConversationKey, by: InstanceId, stamp: i64) -> DbResult<()> {
        self.answers()?;
        sleep(Duration::from_millis(self.take_ms.load(Ordering::Relaxed))).await;
        let mut holders = self.holders.lock();
        if holders.get(conversation) == Some(&(by, stamp)) {
            holders.remove(conversation);
        }
        Ok(())
    }

    async fn leave(&self, instance: InstanceId) -> DbResult<()> {
        self.answers()?;
        sleep(Duration::from_millis(self.leave_ms.load(Ordering::Relaxed))).await;
        self.peers.lock().remove(&instance.to_string());
        self.holders.lock().retain(|_, (by, _)| *by != instance);
        Ok(())
    }

    async fn forget(&self, instance: InstanceId, beat: i64) -> DbResult<()> {
        let now = self.peers.lock().get(&instance.to_string()).map(|(_, beat)| *beat);
        if now == Some(beat) { self.leave(instance).await } else { self.answers() }
    }
}

/// Nothing is ever there.
impl Occupancy for () {
    fn is_idle(&self, _: &ConversationKey) -> bool {
        true
    }

    fn has_run(&self, _: &ConversationKey) -> bool {
        false
    }

    fn lost(&self, _: &ConversationKey) {}
}
