//! One connection: what it does now, until when it may, and how it ends.
//!
//! It waits for its client, or a request waits for its turn, or an answer is sent: from the head of a request until the
//! last byte of the answer is handed to the socket, which is later than the end of its body: hyper takes a body of one
//! piece at once. [`super::socket`] reports what the socket does. A connection that is asked to close first reads what
//! has arrived, because on a busy machine a request can wait in the socket of a connection that still counts as idle.

use std::{
    future::poll_fn,
    io, mem,
    net::IpAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::slots::{AnswerPermit, ConnectionSlots};
use crate::{
    api::http::auth::Class,
    domain::{Principal, clock::every},
};

/// How long a connection reads what has arrived. The runtime polls the sockets before it lets any time pass.
const LAST_READ: Duration = Duration::from_millis(2);
/// How long a new connection, or a request that waits for its turn, stays even when it takes the last slot.
const NEW_MIN: Duration = Duration::from_millis(100);
/// The same for the request of a guest. Clients from many addresses leave only the reserve to those that follow them.
const GUEST_TURN_MIN: Duration = Duration::from_millis(50);
/// The same for a connection that has had an answer.
const IDLE_MIN: Duration = Duration::from_millis(500);
/// How long a request waits for its turn.
const TURN_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long the answers to health probes may wait for their client. The socket takes those to a hundred probes first.
const PROBE_STALL_MS: u64 = 1000;
/// A connection is closed after so many requests and after this time, so that none keeps its slot without limit.
const REQUESTS_MAX: u32 = 1000;
const AGE_MAX: Duration = Duration::from_hours(1);
/// The least that a client without a token has to read while slots are scarce.
const RATE_BYTES_PER_S_MIN: u64 = 8 << 10;
const RATE_WINDOW: Duration = Duration::from_secs(5);
/// How often the limits of an upgraded connection are looked at.
const LIMITS_SEEN: Duration = Duration::from_secs(1);

/// Why a connection is closed.
pub(super) type CloseReason = &'static str;

#[derive(Debug)]
pub(super) struct Connection {
    slots: Arc<ConnectionSlots>,
    pub(super) address: IpAddr,
    opened: Instant,
    state: Mutex<State>,
    pub(super) make_room: Notify,
    /// The request that waits for its turn is refused.
    refuse: Notify,
    /// The socket is gone, or is to be.
    pub(super) over: CancellationToken,
    _slot: OwnedSemaphorePermit,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    requests: u32,
    /// The class of the last request.
    class: Class,
    /// Since when the socket takes no bytes.
    blocked: Option<Instant>,
    /// The bytes that it took since then, from a time at which it took none.
    window: Option<(Instant, u64)>,
    /// The permit of an answer whose body has ended, until it is flushed; that of an upgraded connection until its end.
    permit: Option<AnswerPermit>,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    /// For a request; a part of its head has arrived at `head`.
    Waiting {
        since: Instant,
        head: Option<Instant>,
    },
    Queued(Instant),
    Answering,
    /// The body has ended, and a part of the answer waits for the socket.
    Flushing,
    /// It speaks another protocol, until its end.
    Upgraded,
}

/// While it lives, a request is answered.
#[derive(Debug)]
pub(super) struct Busy {
    connection: Arc<Connection>,
    turn: Option<AnswerPermit>,
}

impl Busy {
    /// Whether there is room to answer the request.
    pub(super) fn is_answered(&self) -> bool {
        self.turn.is_some()
    }

    /// Whether there is memory for an answer of this length to this owner until its client has read it.
    pub(super) fn holds(&mut self, bytes: u64, owner: Option<&Principal>) -> bool {
        self.turn.as_mut().is_none_or(|turn| turn.hold(bytes, owner))
    }

    /// The connection keeps its turn until its end, for another protocol.
    pub(super) fn upgrade(&mut self) {
        let mut state = self.connection.state.lock();
        (state.phase, state.permit) = (Phase::Upgraded, self.turn.take());
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.connection.state.lock();
        if !matches!(state.phase, Phase::Upgraded) {
            state.phase = Phase::Flushing;
            // That of an answer before, whose client has sent two requests at once.
            let before = mem::replace(&mut state.permit, self.turn.take());
            drop((state, before));
        }
    }
}

impl Connection {
    pub(super) fn new(slots: Arc<ConnectionSlots>, address: IpAddr, slot: OwnedSemaphorePermit) -> Self {
        let opened = Instant::now();
        let phase = Phase::Waiting { since: opened, head: None };
        let class = Class::Guest;
        let state = State { phase, requests: 0, class, blocked: None, window: None, permit: None };
        let (make_room, refuse, over) = (Notify::new(), Notify::new(), CancellationToken::new());
        Self { slots, address, opened, state: Mutex::new(state), make_room, refuse, over, _slot: slot }
    }

    /// Notes that a request has arrived, and waits for its turn. The connection waits for its client again when the
    /// result is dropped and the answer is flushed.
    pub(super) async fn begin(self: &Arc<Self>, class: &Class) -> Busy {
        let now = Instant::now();
        let class = {
            let mut state = self.state.lock();
            // Clients of probes read their answers, so these hold no slot for long.
            let is_unread = state.blocked.is_some() && *class == Class::Probe;
            state.class = if is_unread { Class::Guest } else { class.clone() };
            (state.phase, state.window) = (Phase::Answering, None);
            state.requests = state.requests.saturating_add(1);
            state.class.clone()
        };
        let mut busy = Busy { connection: Arc::clone(self), turn: None };
        loop {
            let ended = self.slots.ended.notified();
            busy.turn = self.slots.turn(&class, self.address);
            if busy.turn.is_some() {
                self.state.lock().phase = Phase::Answering;
                return busy;
            }
            self.state.lock().phase = Phase::Queued(now);
            let _queued = (!class.is_holder()).then(|| Arc::clone(&self.slots.queued));
            tokio::select! {
                biased;
                () = self.refuse.notified() => break,
                () = ended => {}
                () = sleep_until(now + TURN_WAIT_MAX) => break,
            }
        }
        self.state.lock().phase = Phase::Answering;
        busy
    }

    /// Whether the connection closes after this answer.
    pub(super) fn closes(&self) -> bool {
        let requests = self.state.lock().requests;
        requests >= REQUESTS_MAX || self.opened.elapsed() >= AGE_MAX || self.slots.are_scarce()
    }

    /// From when on it may be asked to make room, after what: a guest's before a holder's, a request last, that of a
    /// holder only when every slot is taken.
    pub(super) fn may_go(&self) -> Option<(u8, Instant)> {
        let state = self.state.lock();
        match state.phase {
            Phase::Waiting { since, .. } if state.requests == 0 => Some((0, since + NEW_MIN)),
            Phase::Waiting { since, .. } => Some((u8::from(state.class.is_holder()), since + IDLE_MIN)),
            Phase::Queued(since) if !state.class.is_holder() => Some((2, since + GUEST_TURN_MIN)),
            Phase::Queued(since) if self.slots.are_used_up() => Some((3, since + NEW_MIN)),
            Phase::Queued(_) | Phase::Answering | Phase::Flushing | Phase::Upgraded => None,
        }
    }

    /// Drives a connection to its end, or to that of a limit.
    pub(super) async fn drive<T>(&self, connection: impl Future<Output = T>) -> Result<T, CloseReason> {
        let mut connection = pin!(connection);
        loop {
            tokio::select! {
                biased;
                end = self.within_limits(connection.as_mut()) => return end,
                () = self.make_room.notified() => {}
            }
            tokio::select! {
                biased;
                end = self.within_limits(connection.as_mut()) => return end,
                () = sleep(LAST_READ) => {}
            }
            if self.may_go().is_some_and(|(_, from)| from <= Instant::now()) {
                if !matches!(self.state.lock().phase, Phase::Queued(_)) {
                    return Err("another connection replaced it");
                }
                self.refuse.notify_one();
            }
            self.slots.changed.notify_one();
        }
    }

    /// Waits for the end of an upgraded connection; ends it at a limit and when it is abandoned.
    pub(super) async fn upgraded(&self, abandoned: CancellationToken) -> Result<(), CloseReason> {
        if !matches!(self.state.lock().phase, Phase::Upgraded) {
            return Ok(());
        }
        let over = pin!(self.over.cancelled());
        let limit = async {
            let mut moved = every(LIMITS_SEEN);
            loop {
                moved.tick().await;
                if let Err(why) = self.next_limit() {
                    return why;
                }
            }
        };
        let ended = tokio::select! {
            () = over => return Ok(()),
            why = limit => why,
            () = abandoned.cancelled() => "the server stops",
        };
        self.over.cancel();
        Err(ended)
    }

    async fn within_limits<T>(&self, mut connection: Pin<&mut impl Future<Output = T>>) -> Result<T, CloseReason> {
        let mut timer = pin!(sleep(Duration::ZERO));
        poll_fn(|cx| {
            if let Poll::Ready(end) = connection.as_mut().poll(cx) {
                return Poll::Ready(Ok(end));
            }
            // What the connection has just done may have moved the limit.
            while let Some(limit) = self.next_limit()? {
                if timer.deadline() != limit {
                    timer.as_mut().reset(limit);
                }
                if timer.as_mut().poll(cx).is_pending() {
                    break;
                }
            }
            Poll::Pending
        })
        .await
    }

    /// When the next limit passes; an error when one has passed.
    pub(super) fn next_limit(&self) -> Result<Option<Instant>, CloseReason> {
        let (now, settings) = (Instant::now(), &self.slots.settings);
        let mut state = self.state.lock();
        let due = |from: Instant, ms: u64, ended| {
            let limit = from + Duration::from_millis(ms);
            if limit > now { Ok(limit) } else { Err(ended) }
        };
        let mut next = None;
        if let Phase::Waiting { since, head } = state.phase {
            next = Some(match head.or((state.requests == 0).then_some(since)) {
                Some(begun) => due(begun, settings.header_read_ms, "the head of a request took too long")?,
                None => due(since, settings.idle_ms, "it was idle")?,
            });
        }
        if let Some(blocked) = state.blocked {
            let is_probe = state.class == Class::Probe;
            let stall_ms = if is_probe { PROBE_STALL_MS.min(settings.write_stall_ms) } else { settings.write_stall_ms };
            let stalled = due(blocked, stall_ms, "its client does not read")?;
            let (since, bytes) = state.window.unwrap_or((now, 0));
            let slow = bytes < RATE_BYTES_PER_S_MIN * since.elapsed().as_secs();
            if slow && !state.class.is_holder() && since + RATE_WINDOW <= now && self.slots.are_scarce() {
                return Err("its client reads slowly while slots are scarce");
            }
            let window = if since + RATE_WINDOW <= now { (now, 0) } else { (since, bytes) };
            state.window = Some(window);
            let limit = stalled.min(window.0 + RATE_WINDOW);
            next = Some(next.map_or(limit, |next| limit.min(next)));
        }
        Ok(next)
    }

    pub(super) fn has_read(&self) {
        if let Phase::Waiting { head: head @ None, .. } = &mut self.state.lock().phase {
            *head = Some(Instant::now());
        }
    }

    pub(super) fn has_written(&self, written: &Poll<io::Result<usize>>) {
        let mut state = self.state.lock();
        match written {
            Poll::Pending => {
                let now = *state.blocked.get_or_insert_with(Instant::now);
                state.window.get_or_insert((now, 0));
            }
            Poll::Ready(Ok(more)) => {
                state.blocked = None;
                state.window = state.window.map(|(since, bytes)| (since, bytes + *more as u64));
            }
            Poll::Ready(Err(_)) => {}
        }
    }

    /// The socket has taken all that was to be sent. An answer whose body has ended gives its permit back, also while
    /// the next request of its client waits for one.
    pub(super) fn has_flushed(&self) {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Upgraded) {
            return;
        }
        let (permit, is_idle) = (state.permit.take(), matches!(state.phase, Phase::Flushing));
        if is_idle {
            state.phase = Phase::Waiting { since: Instant::now(), head: None };
        }
        drop((state, permit));
        if is_idle {
            self.slots.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
