//! One connection: what it does now, until when it may, and how it ends.
//!
//! It waits for its client, or a request waits for its turn, or an answer is sent: from the head of a request until
//! the last byte of the answer's body is handed to the socket. [`Watched`] tells what the socket does. A connection
//! that is asked to make room first reads what has arrived, because on a busy machine a request can wait in the
//! socket of a connection that still counts as idle.

use std::{
    future::poll_fn,
    io,
    net::IpAddr,
    pin::{Pin, pin},
    sync::{Arc, Mutex, atomic::Ordering},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::{Notify, OwnedSemaphorePermit},
    time::{Instant, interval, sleep, sleep_until},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::places::{AnswerPermit, Places, locked};
use crate::api::http::auth::Class;

/// How long a connection reads what has arrived. The runtime polls the sockets before it lets any time pass.
const LAST_READ: Duration = Duration::from_millis(2);
/// How long a new connection, or a request that waits for its turn, stays even when it takes the last place.
const NEW_MIN: Duration = Duration::from_millis(100);
/// The same for a connection that has had an answer.
const IDLE_MIN: Duration = Duration::from_millis(500);
/// How long a request waits for its turn.
const TURN_WAIT_MAX: Duration = Duration::from_secs(10);
/// A connection is closed after so many requests and after this time, so that none keeps its place without limit.
const REQUESTS_MAX: u32 = 1000;
const AGE_MAX: Duration = Duration::from_hours(1);
/// The least that a client without a token has to read while places are short.
const RATE_BYTES_PER_S_MIN: u64 = 8 << 10;
const RATE_WINDOW: Duration = Duration::from_secs(5);
/// How often the limits of an upgraded connection are looked at.
const LIMITS_SEEN: Duration = Duration::from_secs(1);

/// Why a connection is ended.
pub(super) type Ended = &'static str;

#[derive(Debug)]
pub(super) struct Connection {
    places: Arc<Places>,
    address: IpAddr,
    opened: Instant,
    state: Mutex<State>,
    pub(super) make_room: Notify,
    /// The request that waits for its turn is refused.
    refuse: Notify,
    /// The socket is gone, or is to be.
    over: CancellationToken,
    _place: OwnedSemaphorePermit,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    requests: u32,
    /// Of the last request.
    class: Class,
    /// Since when the socket takes no bytes.
    blocked: Option<Instant>,
    /// The bytes that it took since then, from a time at which it took none.
    window: Option<(Instant, u64)>,
    /// That of the request by which it was upgraded.
    upgraded: Option<AnswerPermit>,
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
    /// It speaks another protocol, until its end.
    Upgraded,
}

/// While it lives, the connection is busy.
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

    /// The connection keeps its turn until its end, for another protocol.
    pub(super) fn upgrade(&mut self) {
        let mut state = locked(&self.connection.state);
        (state.phase, state.upgraded) = (Phase::Upgraded, self.turn.take());
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if matches!(locked(&self.connection.state).phase, Phase::Upgraded) {
            return;
        }
        self.connection.set(Phase::Waiting { since: Instant::now(), head: None });
        self.connection.places.changed.notify_one();
    }
}

impl Connection {
    pub(super) fn new(places: Arc<Places>, address: IpAddr, place: OwnedSemaphorePermit) -> Self {
        let opened = Instant::now();
        let phase = Phase::Waiting { since: opened, head: None };
        let class = Class::Guest;
        let state = State { phase, requests: 0, class, blocked: None, window: None, upgraded: None };
        let (make_room, refuse, over) = (Notify::new(), Notify::new(), CancellationToken::new());
        Self { places, address, opened, state: Mutex::new(state), make_room, refuse, over, _place: place }
    }

    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    fn set(&self, phase: Phase) {
        locked(&self.state).phase = phase;
    }

    /// Notes that a request has arrived, and waits for its turn. The connection waits for its client again when the
    /// result is dropped.
    pub(super) async fn begin(self: &Arc<Self>, class: &Class) -> Busy {
        let now = Instant::now();
        {
            let mut state = locked(&self.state);
            (state.class, state.phase, state.window) = (class.clone(), Phase::Answering, None);
            state.requests = state.requests.saturating_add(1);
        }
        let mut busy = Busy { connection: Arc::clone(self), turn: None };
        loop {
            let ended = self.places.ended.notified();
            busy.turn = self.places.turn(class, self.address);
            if busy.turn.is_some() {
                self.set(Phase::Answering);
                return busy;
            }
            self.set(Phase::Queued(now));
            let _queued = Queued::new(&self.places);
            tokio::select! {
                biased;
                () = self.refuse.notified() => break,
                () = ended => {}
                () = sleep_until(now + TURN_WAIT_MAX) => break,
            }
        }
        self.set(Phase::Answering);
        busy
    }

    /// Whether the connection closes after this answer.
    pub(super) fn closes(&self) -> bool {
        let requests = locked(&self.state).requests;
        requests >= REQUESTS_MAX || self.opened.elapsed() >= AGE_MAX || self.places.are_short()
    }

    /// From when on it may be asked to make room, after what: a guest's before a holder's, a request last, that of a
    /// holder only when every place is taken.
    pub(super) fn may_go(&self) -> Option<(u8, Instant)> {
        let state = locked(&self.state);
        match state.phase {
            Phase::Waiting { since, .. } if state.requests == 0 => Some((0, since + NEW_MIN)),
            Phase::Waiting { since, .. } => {
                Some((u8::from(matches!(state.class, Class::Holder { .. })), since + IDLE_MIN))
            }
            Phase::Queued(since) if state.class == Class::Guest => Some((2, since + NEW_MIN)),
            Phase::Queued(since) if self.places.are_taken() => Some((3, since + NEW_MIN)),
            Phase::Queued(_) | Phase::Answering | Phase::Upgraded => None,
        }
    }

    /// Drives a connection to its end, or to that of a limit.
    pub(super) async fn drive<T>(&self, connection: impl Future<Output = T>) -> Result<T, Ended> {
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
                if !matches!(locked(&self.state).phase, Phase::Queued(_)) {
                    return Err("it made room for another");
                }
                self.refuse.notify_one();
            }
            self.places.changed.notify_one();
        }
    }

    /// Waits for the end of an upgraded connection; ends it at a limit and when it is abandoned.
    pub(super) async fn upgraded(&self, abandoned: CancellationToken) -> Result<(), Ended> {
        if !matches!(locked(&self.state).phase, Phase::Upgraded) {
            return Ok(());
        }
        let over = pin!(self.over.cancelled());
        let limit = async {
            let mut moved = interval(LIMITS_SEEN);
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

    async fn within_limits<T>(&self, mut connection: Pin<&mut impl Future<Output = T>>) -> Result<T, Ended> {
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
    fn next_limit(&self) -> Result<Option<Instant>, Ended> {
        let (now, limits) = (Instant::now(), &self.places.limits);
        let mut state = locked(&self.state);
        let due = |limit: Instant, ended| if limit > now { Ok(limit) } else { Err(ended) };
        let mut next = None;
        if let Phase::Waiting { since, head } = state.phase {
            next = Some(match head.or((state.requests == 0).then_some(since)) {
                Some(begun) => due(begun + limits.header_read_max, "the head of a request took too long")?,
                None => due(since + limits.idle_max, "it was idle")?,
            });
        }
        if let Some(blocked) = state.blocked {
            let stalled = due(blocked + limits.write_stall_max, "its client does not read")?;
            let (since, bytes) = state.window.unwrap_or((now, 0));
            let slow = bytes < RATE_BYTES_PER_S_MIN * since.elapsed().as_secs();
            if slow && state.class == Class::Guest && since + RATE_WINDOW <= now && self.places.are_short() {
                return Err("its client reads slowly while places are short");
            }
            let window = if since + RATE_WINDOW <= now { (now, 0) } else { (since, bytes) };
            state.window = Some(window);
            let limit = stalled.min(window.0 + RATE_WINDOW);
            next = Some(next.map_or(limit, |next| limit.min(next)));
        }
        Ok(next)
    }

    fn has_read(&self) {
        if let Phase::Waiting { head: head @ None, .. } = &mut locked(&self.state).phase {
            *head = Some(Instant::now());
        }
    }

    fn has_written(&self, written: &Poll<io::Result<usize>>) {
        let mut state = locked(&self.state);
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
}

struct Queued<'a>(&'a Places);

impl<'a> Queued<'a> {
    fn new(places: &'a Places) -> Self {
        places.queued.fetch_add(1, Ordering::Relaxed);
        Self(places)
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.0.queued.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A socket that tells its connection what it reads and writes.
pub(super) struct Watched {
    stream: TcpStream,
    connection: Arc<Connection>,
    over: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Watched {
    pub(super) fn new(stream: TcpStream, connection: Arc<Connection>) -> Self {
        let over = Box::pin(connection.over.clone().cancelled_owned());
        Self { stream, connection, over }
    }

    /// An error once the connection is to end. Reading and writing are polled by one task, which is woken.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.over.as_mut().poll(cx).is_ready() { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.connection.over.cancel();
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.connection.has_read();
        }
        polled
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.connection.has_written(&polled);
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.connection.has_written(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
