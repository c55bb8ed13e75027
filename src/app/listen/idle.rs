//! Which connections wait for their clients, and how one of them makes room.
//!
//! A connection is busy from the head of a request until the last byte of its answer, and idle otherwise. When every
//! place is taken, the connection that has been idle longest is asked to make room. It first reads what has arrived,
//! because on a busy machine a request can wait in the socket of a connection that still counts as idle. A connection
//! that was idle for less than [`IDLE_MIN`] is not asked: its client is likely to send a request. One connection is
//! asked at a time.

use std::{
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use axum::body::Body;
use http_body_util::BodyExt as _;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};

/// How long a connection reads what has arrived. The runtime polls the sockets before it lets any time pass.
const LAST_READ: Duration = Duration::from_millis(2);
/// How long a connection may be idle even when it takes the last place.
const IDLE_MIN: Duration = Duration::from_millis(500);

/// All open connections of a listener.
#[derive(Debug, Default)]
pub(super) struct Connections {
    /// In the order in which they were opened.
    open: Mutex<Vec<Weak<Connection>>>,
    /// Notified when a connection became idle, or stays although it was asked to make room.
    changed: Notify,
}

#[derive(Debug)]
pub(super) struct Connection {
    all: Arc<Connections>,
    /// `None` while it is busy.
    idle_since: Mutex<Option<Instant>>,
    make_room: Notify,
}

/// While it lives, the connection is busy.
struct Busy(Arc<Connection>);

impl Connections {
    /// Adds a connection, idle.
    pub(super) fn open(self: &Arc<Self>) -> Arc<Connection> {
        let idle_since = Mutex::new(Some(Instant::now()));
        let connection = Arc::new(Connection { all: Arc::clone(self), idle_since, make_room: Notify::new() });
        let mut open = locked(&self.open);
        open.retain(|other| other.strong_count() > 0);
        open.push(Arc::downgrade(&connection));
        connection
    }

    /// Asks the connection that has been idle longest to make room, if there is one. Returns when the next try makes
    /// sense.
    pub(super) async fn make_room(&self) {
        let mut ready_at = None;
        if let Some((since, oldest)) = self.longest_idle() {
            if since.elapsed() >= IDLE_MIN {
                oldest.make_room.notify_one();
            } else {
                ready_at = Some(since + IDLE_MIN);
            }
        }
        tokio::select! {
            () = self.changed.notified() => {}
            () = sleep_until(ready_at.unwrap_or_else(Instant::now)), if ready_at.is_some() => {}
        }
    }

    fn longest_idle(&self) -> Option<(Instant, Arc<Connection>)> {
        let open = locked(&self.open);
        let idle = open.iter().filter_map(|connection| {
            let connection = connection.upgrade()?;
            let since = *locked(&connection.idle_since);
            Some((since?, connection))
        });
        idle.min_by_key(|(since, _)| *since)
    }
}

impl Connection {
    /// Notes that a request has arrived. The connection is idle again when `answer` was sent.
    pub(super) fn busy<E>(
        self: Arc<Self>,
        answer: impl Future<Output = Result<http::Response<Body>, E>>,
    ) -> impl Future<Output = Result<http::Response<impl http_body::Body<Data = bytes::Bytes, Error = axum::Error>>, E>>
    {
        *locked(&self.idle_since) = None;
        let busy = Busy(self);
        async move {
            // The closure owns `busy` until the body is dropped.
            let keep = move |error| (error, &busy).0;
            answer.await.map(|response| response.map(|body| body.map_err(keep)))
        }
    }

    /// Drives a connection to its end. `None` when it was idle and made room.
    pub(super) async fn drive<T>(&self, connection: impl Future<Output = T>) -> Option<T> {
        let mut connection = pin!(connection);
        loop {
            tokio::select! {
                biased;
                end = connection.as_mut() => return Some(end),
                () = self.make_room.notified() => {}
            }
            tokio::select! {
                biased;
                end = connection.as_mut() => return Some(end),
                () = sleep(LAST_READ) => {}
            }
            if locked(&self.idle_since).is_some_and(|since| since.elapsed() >= IDLE_MIN) {
                return None;
            }
            self.all.changed.notify_one();
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        *locked(&self.0.idle_since) = Some(Instant::now());
        self.0.all.changed.notify_one();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, future::pending};

    use super::*;

    async fn answered(connection: &Arc<Connection>) -> http::Response<impl http_body::Body + use<>> {
        let answer = async { Ok::<_, Infallible>(http::Response::new(Body::empty())) };
        let Ok(response) = Arc::clone(connection).busy(answer).await;
        response
    }

    #[tokio::test(start_paused = true)]
    async fn make_room_closes_the_longest_idle_connection_and_no_busy_one() {
        let all = Arc::new(Connections::default());
        let [one, two, three] = [(); 3].map(|()| all.open());
        let is_oldest =
            |expected: &Arc<Connection>| all.longest_idle().is_some_and(|(_, oldest)| Arc::ptr_eq(&oldest, expected));
        assert!(is_oldest(&one));
        sleep(IDLE_MIN).await;
        let response = answered(&one).await;
        assert!(is_oldest(&two), "the answer of the first is not sent yet");
        drop(response);
        assert!(is_oldest(&two), "the first became idle later");
        drop(two);
        assert!(is_oldest(&three));
        drop(three);
        assert!(is_oldest(&one));
        let late = answered(&one).await;
        drop(one);
        assert!(all.longest_idle().is_none());
        drop(late);
        assert!(all.longest_idle().is_none(), "a closed connection is not idle");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_stays_when_its_request_has_arrived_and_ends_when_none_has() {
        let all = Arc::new(Connections::default());
        let [asks, silent] = [(); 2].map(|()| all.open());
        // Its request is read only after it was asked to make room.
        let connection = async {
            sleep(IDLE_MIN + LAST_READ / 2).await;
            let response = answered(&asks).await;
            sleep(IDLE_MIN).await;
            drop(response);
        };
        let newcomer = async {
            loop {
                all.make_room().await;
            }
        };
        let both = async { tokio::join!(asks.drive(connection), silent.drive(pending::<()>())) };
        let (answered, ended) = tokio::select! {
            ends = both => ends,
            () = newcomer => unreachable!("it asks for ever"),
        };
        assert!(answered.is_some() && ended.is_none());
    }
}
