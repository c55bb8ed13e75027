//! Which connections wait for their clients, the longest wait first, and how one of them is ended.
//!
//! A connection is busy from a request's head until the last byte of its answer, and idle otherwise.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};
use tokio_util::sync::CancellationToken;

/// The idle connections, in the order in which they became idle.
#[derive(Debug, Default)]
pub(super) struct Idle(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    newest: u64,
    connections: BTreeMap<u64, CancellationToken>,
}

/// One connection. Its drop takes it from the list.
#[derive(Debug)]
pub(super) struct Connection(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    idle: Arc<Idle>,
    ended: CancellationToken,
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
        let ended = CancellationToken::new();
        let number = idle.add(ended.clone());
        Connection(Arc::new(Inner { idle: Arc::clone(idle), ended, state: Mutex::new(State::Idle(number)) }))
    }

    /// Ends the one that has waited longest, if any waits.
    pub(super) fn end_oldest(&self) {
        if let Some((_, oldest)) = self.waiting().connections.pop_first() {
            oldest.cancel();
        }
    }

    fn add(&self, ended: CancellationToken) -> u64 {
        let mut waiting = self.waiting();
        waiting.newest += 1;
        let number = waiting.newest;
        waiting.connections.insert(number, ended);
        number
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn turn(&self, next: State) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Idle(number) = *state {
            self.idle.waiting().connections.remove(&number);
        }
        *state = match (&*state, next) {
            // An answer may outlive its connection.
            (State::Gone, _) => State::Gone,
            (_, State::Idle(_)) => State::Idle(self.idle.add(self.ended.clone())),
            (_, next) => next,
        };
    }
}

impl Connection {
    /// Cancelled when it has to make room.
    pub(super) fn ended(&self) -> CancellationToken {
        self.0.ended.clone()
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
    use super::*;

    #[test]
    fn the_one_that_waited_longest_makes_room_and_a_busy_one_never() {
        let idle = Arc::new(Idle::default());
        let [one, two, three] = [(); 3].map(|()| Idle::begin(&idle));
        let answering = one.busy().until_sent(Body::empty());
        idle.end_oldest();
        assert!(!one.ended().is_cancelled() && two.ended().is_cancelled() && !three.ended().is_cancelled());
        drop(answering);
        idle.end_oldest();
        assert!(!one.ended().is_cancelled() && three.ended().is_cancelled(), "it became idle later");
        let late = one.busy();
        drop((one, two, three));
        drop(late);
        assert!(idle.waiting().connections.is_empty(), "what is gone is not idle");
    }
}
