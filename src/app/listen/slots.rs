//! The connection slots of a listener: how many requests are answered at once, and which connection is closed for
//! another.
//!
//! Each open connection has a slot. A quarter of the slots is never used for answers to requests without a token
//! (guests), and some not even for those with one (holders), so that a new connection can always be read and a health
//! probe or a holder answered. Health probes have half as many slots as guests leave; beyond, they are guests. One
//! address has a share of the guests' slots. One token may use twice as many slots as it leaves free, and the tokens
//! of one owner together three times as many: two thirds and three quarters of the slots that others do not use. So
//! the last slots go to tokens that use few. A request beyond its share waits.
//!
//! When every slot is used, the connection that has waited longest for its client is closed, guests' first, then one
//! whose request waits for its turn, again guests' first. A connection is spared for a short time in which its client
//! is likely to send a request or an answer is likely to end. One connection is asked to close at a time.
//!
//! The memory of long answers of one piece is held until their clients have read them: bounded in all, and for each
//! owner, who has at most as much as all leave free. So a few owners cannot take all of it from others. An answer of
//! several pieces is made while it is read.

use std::{
    collections::{HashMap, hash_map::Entry},
    iter,
    net::IpAddr,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep_until},
};

use super::connection::Connection;
use crate::{
    api::http::auth::Class,
    config::Server,
    domain::{Principal, TokenId},
};

/// Answers up to this length are bounded by the number of answers: by default, to 64 MiB.
const SHORT_BYTES_MAX: usize = 64 << 10;
/// The memory of all longer answers together.
const LONG_BYTES_MAX: usize = 256 << 20;

/// Whose answers are counted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Sender {
    /// The sender of requests without a token.
    Address(IpAddr),
    Owner(Principal),
    Token(TokenId),
    /// All senders of health probes.
    Probe,
}

#[derive(Debug, Default)]
struct Answers {
    all: Held,
    /// Only senders that have answers.
    senders: HashMap<Sender, Held>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Held {
    answers: usize,
    /// Bytes of the long answers.
    bytes: usize,
}

#[derive(Debug)]
pub(super) struct ConnectionSlots {
    pub(super) settings: Server,
    free: Arc<Semaphore>,
    /// In the order in which they were opened.
    open: Mutex<Vec<Weak<Connection>>>,
    answers: Mutex<Answers>,
    /// Clones are with the requests of guests that wait for their turn.
    pub(super) queued: Arc<()>,
    /// Notified when a connection became idle, or stays although it was asked to make room.
    pub(super) changed: Notify,
    /// Notified when an answer has ended.
    pub(super) ended: Notify,
}

/// While it lives, a request is answered.
#[derive(Debug)]
pub(super) struct AnswerPermit {
    slots: Arc<ConnectionSlots>,
    senders: Vec<Sender>,
    /// The length of a long answer.
    bytes: usize,
}

impl ConnectionSlots {
    pub(super) fn new(settings: Server) -> Arc<Self> {
        Arc::new(Self {
            free: Arc::new(Semaphore::new(settings.connections_max as usize)),
            settings,
            open: Mutex::default(),
            answers: Mutex::default(),
            queued: Arc::default(),
            changed: Notify::new(),
            ended: Notify::new(),
        })
    }

    /// A slot for a new connection. It waits while every connection is busy.
    pub(super) async fn open(self: &Arc<Self>, address: IpAddr) -> Option<Arc<Connection>> {
        let slot = loop {
            tokio::select! {
                biased;
                slot = Arc::clone(&self.free).acquire_owned() => break slot.ok()?,
                () = self.make_room() => {}
            }
        };
        let connection = self.add(address, slot);
        if self.are_scarce()
            && let Ok(idle) = self.next_to_go()
        {
            idle.make_room.notify_one();
        }
        Some(connection)
    }

    fn add(self: &Arc<Self>, address: IpAddr, slot: OwnedSemaphorePermit) -> Arc<Connection> {
        let connection = Arc::new(Connection::new(Arc::clone(self), address, slot));
        let mut open = self.open.lock();
        open.retain(|other| other.strong_count() > 0);
        open.push(Arc::downgrade(&connection));
        connection
    }

    fn reserve(&self) -> usize {
        self.settings.connections_max as usize / 4
    }

    /// Whose answers a request counts among beside so many others, and how many each may have with it.
    fn shares(&self, class: &Class, address: IpAddr, answers: usize) -> Vec<(Sender, usize)> {
        let slots = self.settings.connections_max as usize;
        match class {
            Class::Probe => vec![(Sender::Probe, (self.reserve() / 2).max(1))],
            Class::Holder { owner, token } => {
                let left = (slots - self.reserve().div_ceil(4)).saturating_sub(answers);
                vec![(Sender::Owner(owner.clone()), left * 3), (Sender::Token(*token), left * 2)]
            }
            Class::Guest => {
                let share = (slots * self.settings.address_percent as usize / 100).max(1);
                vec![(Sender::Address(address), if answers < slots - self.reserve() { share } else { 0 })]
            }
        }
    }

    /// Whether only the reserve is left, or a guest's request waits for its turn. A holder's that waits while there is
    /// more waits for its own answers, which other connections do not hold up.
    pub(super) fn are_scarce(&self) -> bool {
        self.free.available_permits() < self.reserve() || Arc::strong_count(&self.queued) > 1
    }

    /// Whether no slot is left.
    pub(super) fn are_used_up(&self) -> bool {
        self.free.available_permits() == 0
    }

    /// The right to be answered now.
    pub(super) fn turn(self: &Arc<Self>, class: &Class, address: IpAddr) -> Option<AnswerPermit> {
        let mut answers = self.answers.lock();
        let held = |sender: &Sender| answers.senders.get(sender).map_or(0, |held| held.answers);
        let guest = Class::Guest;
        let shares = iter::once(class)
            .chain((*class == Class::Probe).then_some(&guest))
            .map(|class| self.shares(class, address, answers.all.answers))
            .find(|shares| shares.iter().all(|(sender, most)| held(sender) < *most))?;
        answers.all.answers += 1;
        let senders: Vec<_> = shares.into_iter().map(|(sender, _)| sender).collect();
        for sender in &senders {
            answers.senders.entry(sender.clone()).or_default().answers += 1;
        }
        Some(AnswerPermit { slots: Arc::clone(self), senders, bytes: 0 })
    }

    /// Asks a connection to make room, if one can. Returns when the next try makes sense.
    async fn make_room(&self) {
        let later = self.next_to_go().map(|connection| connection.make_room.notify_one()).err().flatten();
        tokio::select! {
            () = self.changed.notified() => {}
            () = sleep_until(later.unwrap_or_else(Instant::now)), if later.is_some() => {}
        }
    }

    /// The connection that makes room first; otherwise when there will be one.
    fn next_to_go(&self) -> Result<Arc<Connection>, Option<Instant>> {
        let now = Instant::now();
        let (mut first, mut later) = (None, None::<Instant>);
        for connection in self.open.lock().iter().filter_map(Weak::upgrade) {
            let Some((rank, from)) = connection.may_go() else { continue };
            if from > now {
                later = Some(later.map_or(from, |later| later.min(from)));
            } else if first.as_ref().is_none_or(|(least, _)| (rank, from) < *least) {
                first = Some(((rank, from), connection));
            }
        }
        first.map(|(_, connection)| connection).ok_or(later)
    }
}

impl AnswerPermit {
    /// Whether there is memory for an answer of this length to this owner until its client has read it. Without an
    /// owner an answer of one piece is short, or the same memory for all.
    pub(super) fn hold(&mut self, bytes: u64, owner: Option<&Principal>) -> bool {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(LONG_BYTES_MAX);
        let Some(owner) = owner.filter(|_| bytes > SHORT_BYTES_MAX) else { return true };
        let owner = Sender::Owner(owner.clone());
        let mut answers = self.slots.answers.lock();
        let left = LONG_BYTES_MAX - answers.all.bytes;
        let held = answers.senders.get(&owner).map_or(0, |held| held.bytes);
        // The only one of an owner may be longer than what it leaves free.
        if bytes > left || (held > 0 && held + bytes > left - bytes) {
            return false;
        }
        // Its token was not known when the request arrived.
        if !self.senders.contains(&owner) {
            answers.senders.entry(owner.clone()).or_default().answers += 1;
            self.senders.push(owner);
        }
        answers.all.bytes += bytes;
        for sender in &self.senders {
            answers.senders.entry(sender.clone()).or_default().bytes += bytes;
        }
        self.bytes += bytes;
        true
    }
}

impl Drop for AnswerPermit {
    fn drop(&mut self) {
        let mut answers = self.slots.answers.lock();
        answers.all.answers -= 1;
        answers.all.bytes -= self.bytes;
        for sender in self.senders.drain(..) {
            if let Entry::Occupied(mut held) = answers.senders.entry(sender) {
                held.get_mut().answers -= 1;
                held.get_mut().bytes -= self.bytes;
                if held.get().answers == 0 {
                    held.remove();
                }
            }
        }
        drop(answers);
        self.slots.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
