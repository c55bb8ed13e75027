//! Which connections wait for their clients, the longest wait first, and how one of them is ended.
//!
//! A connection is busy from a request's head until the last byte of its answer, and idle otherwise. One that has to make
//! room reads first what has come: on a machine that is busy a request can wait in a socket while its connection is still
//! taken to be idle, and who has asked is answered. Nor is one asked that has only just come, or whose answer was only just
//! sent: its client is about to speak. One at a time is asked to make room.

use std::{
    collections::BTreeMap,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

/// How long a connection takes to read what has come. The runtime asks the system for that before it lets any time pass.
const LAST_LOOK: Duration = Duration::from_millis(2);

/// How long a client may be silent whatever happens.
const SILENT_MIN: Duration = Duration::from_millis(500);

/// The idle connections, in the order in which they became idle.
#[derive(Debug, Default)]
pub(super) struct Idle {
    waiting: Mutex<Waiting>,
    /// RenderedError when somebody became idle, or when the one that was asked has made room or has not.
    news: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    newest: u64,
    connections: BTreeMap<u64, (Instant, Arc<Asked>)>,
    /// Somebody was asked to make room, and what came of it is not known yet.
    asking: bool,
}

/// Whether a connection was asked to make room.
#[derive(Debug, Default)]
struct Asked {
    flag: AtomicBool,
    told: Notify,
}

/// One connection. Its drop takes it from the list.
#[derive(Debug)]
pub(super) struct Connection(Arc<Inner>);

/// The same from beside it, for the task that drives it.
#[derive(Debug)]
pub(super) struct Driver(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    idle: Arc<Idle>,
    asked: Arc<Asked>,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// With its number in the list.
    Idle(u64),
    Busy,
    Gone,
}

/// While it lives, the connection is not idle.
#[derive(Debug)]
pub(super) struct Busy(Arc<Inner>);

/// The body of an answer, which keeps the connection busy until it is sent.
#[derive(Debug)]
pub(super) struct Answer {
    body: Body,
    _busy: Busy,
}

impl Idle {
    /// A new connection, idle.
    pub(super) fn begin(idle: &Arc<Self>) -> Connection {
        let asked = Arc::<Asked>::default();
        let number = idle.add(Arc::clone(&asked));
        Connection(Arc::new(Inner { idle: Arc::clone(idle), asked, state: Mutex::new(State::Idle(number)) }))
    }

    /// Asks the one that has waited longest to make room, if any waits and nobody else was asked. Returns when it may be worth
    /// while to ask again.
    pub(super) async fn end_oldest(&self) {
        tokio::select! {
            () = self.news.notified() => {}
            () = pause(self.ask_oldest()) => {}
        }
    }

    /// How long it is until it can be asked, if that is all that is in the way.
    fn ask_oldest(&self) -> Option<Duration> {
        let mut waiting = self.waiting();
        if waiting.asking {
            return None;
        }
        let oldest = waiting.connections.first_entry()?;
        let until = oldest.get().0 + SILENT_MIN;
        let now = Instant::now();
        if now < until {
            return Some(until.saturating_duration_since(now));
        }
        let (_, asked) = oldest.remove();
        waiting.asking = true;
        asked.flag.store(true, Ordering::SeqCst);
        asked.told.notify_one();
        None
    }

    fn add(&self, asked: Arc<Asked>) -> u64 {
        let mut waiting = self.waiting();
        waiting.newest += 1;
        let number = waiting.newest;
        waiting.connections.insert(number, (Instant::now(), asked));
        drop(waiting);
        self.news.notify_one();
        number
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn pause(time: Option<Duration>) {
    match time {
        Some(time) => sleep(time).await,
        None => std::future::pending().await,
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self, next: State) {
        let mut state = self.state();
        if let State::Idle(number) = *state {
            self.idle.waiting().connections.remove(&number);
        }
        *state = match (&*state, next) {
            // An answer may outlive its connection.
            (State::Gone, _) => State::Gone,
            (_, State::Idle(_)) => State::Idle(self.idle.add(Arc::clone(&self.asked))),
            (_, next) => next,
        };
    }

    /// It has made room, or has not: another can be asked.
    fn settle(&self) {
        if self.asked.flag.swap(false, Ordering::SeqCst) {
            self.idle.waiting().asking = false;
            self.idle.news.notify_one();
        }
    }

    /// It is idle, and not since it was asked.
    fn is_silent(&self) -> bool {
        let State::Idle(number) = *self.state() else { return false };
        !self.idle.waiting().connections.contains_key(&number)
    }
}

impl Driver {
    /// Drives a connection to its end; nothing, when it was silent and had to make room.
    pub(super) async fn drive<T>(&self, connection: impl Future<Output = T>) -> Option<T> {
        let mut connection = pin!(connection);
        loop {
            tokio::select! {
                biased;
                end = connection.as_mut() => return Some(end),
                () = self.0.asked.told.notified() => {}
            }
            tokio::select! {
                biased;
                end = connection.as_mut() => return Some(end),
                () = sleep(LAST_LOOK) => {}
            }
            if self.0.is_silent() {
                return None;
            }
            self.0.settle();
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.settle();
    }
}

impl Connection {
    /// For the task that drives it.
    pub(super) fn driver(&self) -> Driver {
        Driver(Arc::clone(&self.0))
    }

    /// A request has come.
    pub(super) fn busy(&self) -> Busy {
        self.0.turn(State::Busy);
        Busy(Arc::clone(&self.0))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.turn(State::Gone);
    }
}

impl Busy {
    /// Busy until this body is sent.
    pub(super) fn until_sent(self, body: Body) -> Answer {
        Answer { body, _busy: self }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.turn(State::Idle(0));
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::task::yield_now;

    use super::*;

    fn asked(connection: &Connection) -> bool {
        connection.0.asked.flag.load(Ordering::SeqCst)
    }

    #[tokio::test(start_paused = true)]
    async fn the_one_that_waited_longest_makes_room_and_a_busy_one_never() {
        let idle = Arc::new(Idle::default());
        let [one, two, three] = [(); 3].map(|()| Idle::begin(&idle));
        assert_eq!(idle.ask_oldest(), Some(SILENT_MIN), "they have only just come");
        sleep(SILENT_MIN).await;
        let answering = one.busy().until_sent(Body::empty());
        assert_eq!((idle.ask_oldest(), idle.ask_oldest()), (None, None));
        assert!(!asked(&one) && asked(&two) && !asked(&three), "one at a time");
        drop(two.driver());
        drop(answering);
        assert_eq!(idle.ask_oldest(), None);
        assert!(!asked(&one) && asked(&three), "it became idle later");
        let late = one.busy();
        drop((one, two, three));
        drop(late);
        assert!(idle.waiting().connections.is_empty(), "what is gone is not idle");
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_asked_is_answered_and_who_is_silent_makes_room() {
        let idle = Arc::new(Idle::default());
        let [asks, silent] = [(); 2].map(|()| Idle::begin(&idle));
        let (driver, other) = (asks.driver(), silent.driver());
        sleep(SILENT_MIN).await;
        // Its request is read only once it was asked to make room.
        let connection = async {
            while !asked(&asks) {
                yield_now().await;
            }
            let busy = asks.busy();
            sleep(SILENT_MIN).await;
            drop(busy);
        };
        let newcomer = async {
            while !asked(&silent) {
                idle.end_oldest().await;
            }
        };
        let (answered, ended, ()) = tokio::join!(driver.drive(connection), other.drive(pending::<()>()), newcomer);
        assert!(answered.is_some() && ended.is_none());
    }
}
