//! Several servers behind one address: which of them has a conversation. A conversation's programs, sessions, lock and
//! standbys are at one server; the others send it the requests for them. The shared database stores which one it is.
//!
//! A conversation is taken when something is about to begin in it, and given back when nothing was in it for
//! [`IDLE_MAX`], or the server stops. While it is held, nothing waits for the database. A conversation whose id this
//! server has just made is held at once and stored in the background, since no other server can know the id before the
//! answer has named it. While the database is away, each server answers for every conversation: two may then have the
//! same one, whose programs share its files.
//!
//! A server changes its heartbeat while it lives; one whose heartbeat has been the same for [`DEAD_AFTER`] loses its
//! conversations, so the servers' clocks do not matter; one whose machine was suspended notices how long. The statement
//! that takes a conversation compares the heartbeat again, so a server that has just started, or has come back, keeps
//! its conversations. A server that is dead for [`FORGOTTEN_AFTER`] is removed from the database.
//! Knows no HTTP: `api/http/peers` forwards requests.
//!
//! ```text
//! follow ── one task: writes the heartbeat, reads the others', stores new conversations, gives back idle ones
//! take ── a task that ends by itself: the database goes on with a statement whose request is aborted
//! ```

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use crate::ports::peers::Peer;
use crate::{
    domain::{Clock, Code, ConversationKey, Failure, Heartbeats, InstanceId, Moment, clock::every},
    ports::{
        database::{DatabaseError, DbResult, within},
        peers::PeerStore,
    },
};

/// How often a server beats and reads the others.
pub const ROUND: Duration = Duration::from_secs(2);
/// A server whose beat is the same for so long is dead.
pub const DEAD_AFTER: Duration = Duration::from_secs(10);
/// A server that is dead for so long is removed from the database, with what it had.
const FORGOTTEN_AFTER: Duration = Duration::from_hours(1);
/// A conversation in which nothing has been for so long is given back.
const IDLE_MAX: Duration = Duration::from_mins(1);
/// The same while the server stops: longer than a request takes from its check to its position in the queue.
const LEAVING_IDLE: Duration = Duration::from_millis(500);
/// How long a request waits for the database.
const TAKE_MAX: Duration = Duration::from_millis(500);
/// When a client should try again whose conversation is at a server that does not answer, in seconds.
const RETRY_AFTER_S: u64 = 5;

/// The servers beside this one. A clone is the same.
#[derive(Clone, Default)]
pub struct Peers(Option<Arc<Inner>>);

struct Inner {
    me: Peer,
    store: Arc<dyn PeerStore>,
    clock: Arc<dyn Clock>,
    others: RwLock<Vec<Peer>>,
    /// With the beat that did not change.
    dead: RwLock<Vec<(InstanceId, i64)>>,
    records: Mutex<HashMap<ConversationKey, OwnRecord>>,
    /// The last stamp that was given.
    stamp: AtomicI64,
    /// Something was made here that is not stored.
    made: Notify,
    /// Whether the others are known. Sent after each round.
    ready: watch::Sender<bool>,
    /// Whether something is held that may not be stored.
    has_unstored: AtomicBool,
    /// Whether the log says that the database is away.
    has_warned: AtomicBool,
    is_leaving: AtomicBool,
}

#[derive(Clone, Copy)]
struct OwnRecord {
    used: Instant,
    /// `None` until it is stored.
    stamp: Option<i64>,
}

/// What the rounds of [`Peers::follow`] know of each other.
#[derive(Default)]
struct Beats {
    /// When this server's own last beat began.
    own: Option<Moment>,
    others: Heartbeats<i64>,
}

/// What is at a server.
pub trait Occupancy: Send + Sync {
    /// Whether no run and no session is in the conversation, also none that is being opened, and no client holds it for
    /// a time.
    fn is_idle(&self, conversation: &ConversationKey) -> bool;

    /// Whether a run is under way or waits in the conversation.
    fn has_run(&self, conversation: &ConversationKey) -> bool;

    /// Ends the sessions of a conversation that another server has taken meanwhile, or may take now.
    fn lost(&self, conversation: &ConversationKey);
}

impl Peers {
    /// A server that the others reach at `me`.
    pub fn new(me: Peer, store: Arc<dyn PeerStore>, clock: Arc<dyn Clock>) -> Self {
        Self(Some(Arc::new(Inner {
            me,
            store,
            others: RwLock::default(),
            dead: RwLock::default(),
            records: Mutex::default(),
            // Above those of an earlier process, so a late step of that one takes nothing back.
            stamp: AtomicI64::new(clock.unix_ms()),
            made: Notify::new(),
            ready: watch::Sender::new(false),
            has_unstored: AtomicBool::new(false),
            has_warned: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            clock,
        })))
    }

    /// Whether the settings name no way to reach this server, so that it is the only one.
    pub fn is_alone(&self) -> bool {
        self.0.is_none()
    }

    /// The other servers that live.
    pub fn others(&self) -> Vec<Peer> {
        self.0.as_ref().map(|inner| inner.others()).unwrap_or_default()
    }

    /// Waits until a server counts no longer as alive.
    pub async fn dead(&self, instance: InstanceId) {
        let Some(inner) = &self.0 else { return std::future::pending().await };
        let mut rounds = inner.ready.subscribe();
        let lives = || inner.others().iter().any(|peer| peer.instance == instance);
        while lives() && rounds.changed().await.is_ok() {}
    }

    /// Whether something may begin in a conversation here and now.
    ///
    /// # Errors
    /// [`Code::HeldElsewhere`] when [`Self::take`] has to be asked first.
    pub fn check(&self, conversation: &ConversationKey) -> Result<(), Failure> {
        let Some(inner) = self.0.as_ref().filter(|_| !conversation.owner.is_self_test()) else { return Ok(()) };
        if inner.holds(conversation) {
            return Ok(());
        }
        if conversation.id.is_made_here() {
            inner.hold(conversation, None);
            inner.made.notify_one();
            return Ok(());
        }
        Err(elsewhere(conversation))
    }

    /// Takes a conversation, unless another server has it: which one.
    ///
    /// # Errors
    /// [`Code::HeldElsewhere`] when a server has it that this one does not know yet, or this server stops.
    pub async fn take(&self, conversation: &ConversationKey) -> Result<Option<Peer>, Failure> {
        let Some(inner) = self.0.as_ref().filter(|inner| !inner.holds(conversation)) else { return Ok(None) };
        if inner.is_leaving.load(Ordering::Acquire) {
            return Err(elsewhere(conversation));
        }
        let (taking, key) = (Arc::clone(inner), conversation.clone());
        let taken = tokio::spawn(async move { taking.take_and_hold(&key).await }).await;
        let Some(by) = taken.map_err(|_| elsewhere(conversation))? else { return Ok(None) };
        let known = inner.others().into_iter().find(|peer| peer.instance == by);
        known.map(Some).ok_or_else(|| elsewhere(conversation))
    }

    /// Waits until what was made here is stored, so that an answer may name it; no longer than [`TAKE_MAX`], and not
    /// while the database is away.
    pub async fn stored(&self) {
        let Some(inner) = &self.0 else { return };
        let waits = || inner.has_unstored.load(Ordering::Acquire) && !inner.has_warned.load(Ordering::Relaxed);
        let mut rounds = inner.ready.subscribe();
        let stored = async { while waits() && rounds.changed().await.is_ok() {} };
        // Late is no reason to hold back an answer.
        let _ = timeout(TAKE_MAX, stored).await;
    }

    /// The server stops: from now on it takes no conversation, and gives each back in which no run is under way.
    pub fn leave(&self) {
        if let Some(inner) = &self.0 {
            inner.is_leaving.store(true, Ordering::Release);
            inner.made.notify_one();
        }
    }

    /// Beats until `stop`, then leaves everything to the others.
    pub async fn follow(&self, occupancy: impl Occupancy, stop: CancellationToken) {
        let Some(inner) = &self.0 else { return };
        let mut rounds = every(ROUND);
        let mut beats = Beats::default();
        let mut is_new = true;
        loop {
            tokio::select! {
                _ = rounds.tick() => {}
                () = inner.made.notified() => {}
                () = stop.cancelled() => break,
            }
            let round = async {
                if is_new {
                    // What an earlier process had has ended with it.
                    within(DEAD_AFTER / 2, inner.store.leave(inner.me.instance)).await?;
                    is_new = false;
                }
                inner.round(&mut beats, &occupancy).await
            };
            match round.await {
                Ok(()) if inner.has_warned.swap(false, Ordering::Relaxed) => {
                    info!("the database answers again: conversations are at one server each");
                }
                Ok(()) => {}
                Err(error) => {
                    inner.warn_once(&error);
                    inner.forget_unstored(&occupancy);
                }
            }
        }
        // The others find out by themselves, if later.
        drop(timeout(TAKE_MAX, inner.store.leave(inner.me.instance)).await);
    }
}

impl Inner {
    fn others(&self) -> Vec<Peer> {
        self.others.read().clone()
    }

    /// Whether a conversation is held; counts as a use.
    fn holds(&self, conversation: &ConversationKey) -> bool {
        self.records.lock().get_mut(conversation).map(|record| record.used = Instant::now()).is_some()
    }

    fn hold(&self, conversation: &ConversationKey, stamp: Option<i64>) {
        let mut records = self.records.lock();
        // Of requests that took it at once, the database keeps the highest stamp. Where one got no answer, it may have
        // been stored all the same.
        let before = records.get(conversation).map(|record| record.stamp);
        let stamp = before.map_or(stamp, |before| before.zip(stamp).map(|(before, now)| before.max(now)));
        records.insert(conversation.clone(), OwnRecord { used: Instant::now(), stamp });
        if stamp.is_none() {
            self.has_unstored.store(true, Ordering::Release);
        }
    }

    /// Which other server has a conversation; otherwise it is held from now on.
    async fn take_and_hold(&self, conversation: &ConversationKey) -> Option<InstanceId> {
        let stamp = self.stamp.fetch_add(1, Ordering::Relaxed);
        match within(TAKE_MAX, self.take(conversation, stamp)).await {
            Ok(by) if by == self.me.instance => self.hold(conversation, Some(stamp)),
            Ok(by) => return Some(by),
            Err(error) => {
                self.warn_once(&error);
                self.hold(conversation, None);
            }
        }
        None
    }

    async fn take(&self, conversation: &ConversationKey, stamp: i64) -> DbResult<InstanceId> {
        // The sender lives as long as this.
        let _ = self.ready.subscribe().wait_for(|is_ready| *is_ready).await;
        let dead = self.dead.read().clone();
        self.store.take(conversation, self.me.instance, stamp, &dead).await
    }

    async fn round(&self, beats: &mut Beats, occupancy: &impl Occupancy) -> DbResult<()> {
        let (clock, begun) = (self.clock.as_ref(), Moment::now(self.clock.as_ref()));
        within(DEAD_AFTER / 2, self.store.announce(&self.me, self.stamp.fetch_add(1, Ordering::Relaxed))).await?;
        // From before the last beat until after this one, so no other server has counted longer.
        if beats.own.replace(begun).is_some_and(|last| last.elapsed(clock) > DEAD_AFTER / 2) {
            // The others may have thought that this one is dead.
            self.records.lock().values_mut().for_each(|record| record.stamp = None);
            self.has_unstored.store(true, Ordering::Release);
        }
        let mut others = within(DEAD_AFTER / 2, self.store.peers()).await?;
        others.retain(|(peer, _)| peer.instance != self.me.instance);
        beats.others.note(others.iter().map(|(peer, beat)| (peer.instance, *beat)), DEAD_AFTER / 2);
        let dead = beats.others.unchanged_for(DEAD_AFTER);
        others.retain(|(peer, beat)| !dead.contains(&(peer.instance, *beat)));
        *self.others.write() = others.into_iter().map(|(peer, _)| peer).collect();
        *self.dead.write() = dead;
        self.ready.send_replace(true);
        // A beat that took long leaves the rest its time.
        let until = Instant::now() + ROUND;
        self.store_made(until, occupancy).await?;
        self.ready.send_replace(true);
        self.give_back(until, occupancy).await?;
        for (instance, beat) in beats.others.unchanged_for(FORGOTTEN_AFTER) {
            if Instant::now() > until {
                break;
            }
            within(ROUND, self.store.forget(instance, beat)).await?;
        }
        Ok(())
    }

    /// Stores what is held and not stored. What another server has taken meanwhile is lost. Ends with the time of the
    /// round, so that the next beat is not late; the next round goes on.
    async fn store_made(&self, until: Instant, occupancy: &impl Occupancy) -> DbResult<()> {
        if !self.has_unstored.load(Ordering::Acquire) {
            return Ok(());
        }
        let unstored = |(key, record): (&ConversationKey, &OwnRecord)| record.stamp.is_none().then(|| key.clone());
        let made: Vec<_> = self.records.lock().iter().filter_map(unstored).collect();
        for conversation in made {
            if Instant::now() > until {
                break;
            }
            let stamp = self.stamp.fetch_add(1, Ordering::Relaxed);
            if within(ROUND, self.take(&conversation, stamp)).await? == self.me.instance {
                if let Some(record) = self.records.lock().get_mut(&conversation) {
                    record.stamp = Some(stamp);
                }
            } else {
                self.records.lock().remove(&conversation);
                occupancy.lost(&conversation);
                warn!(%conversation, "another server took a conversation while this one did not reach the database");
            }
        }
        let records = self.records.lock();
        self.has_unstored.store(records.values().any(|record| record.stamp.is_none()), Ordering::Release);
        Ok(())
    }

    async fn give_back(&self, until: Instant, occupancy: &impl Occupancy) -> DbResult<()> {
        let is_leaving = self.is_leaving.load(Ordering::Acquire);
        let unused = self.unused_for(if is_leaving { LEAVING_IDLE } else { IDLE_MAX });
        let is_unused = |key: &_| if is_leaving { !occupancy.has_run(key) } else { occupancy.is_idle(key) };
        for (conversation, record) in unused.into_iter().filter(|(key, _)| is_unused(key)) {
            if Instant::now() > until {
                break;
            }
            if is_leaving {
                occupancy.lost(&conversation);
            }
            // A request that comes from here on takes it again, with another stamp.
            if self.drop_unused(&conversation, record.used)
                && let Some(stamp) = record.stamp
            {
                within(ROUND, self.store.give_back(&conversation, self.me.instance, stamp)).await?;
            }
        }
        Ok(())
    }

    /// Forgets what is not stored and not in use. While the database is away nothing is given back, so it would be more
    /// with each conversation, and all of it would be stored afterwards.
    fn forget_unstored(&self, occupancy: &impl Occupancy) {
        for (conversation, record) in self.unused_for(IDLE_MAX) {
            if record.stamp.is_none() && occupancy.is_idle(&conversation) {
                self.drop_unused(&conversation, record.used);
            }
        }
    }

    fn unused_for(&self, time: Duration) -> Vec<(ConversationKey, OwnRecord)> {
        let records = self.records.lock();
        let unused = records.iter().filter(|(_, record)| record.used.elapsed() >= time);
        unused.map(|(key, record)| (key.clone(), *record)).collect()
    }

    /// Whether it was not used since.
    fn drop_unused(&self, conversation: &ConversationKey, since: Instant) -> bool {
        let mut records = self.records.lock();
        let is_unused = records.get(conversation).is_some_and(|now| now.used == since);
        is_unused && records.remove(conversation).is_some()
    }

    fn warn_once(&self, error: &DatabaseError) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            warn!(%error, "the database does not answer which server has a conversation: this server works alone");
        }
    }
}

fn elsewhere(conversation: &ConversationKey) -> Failure {
    let why = "The programs of this conversation are at another server, which does not answer: try again in a moment.";
    Failure::new(Code::HeldElsewhere, why).retry_after(RETRY_AFTER_S).without(conversation)
}

#[cfg(test)]
pub(crate) mod tests;
