//! Whether a client has given up a call: by a notification, or by disconnecting. rmcp signals both by one token; this
//! module distinguishes them, since a notification also stops a detached run.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use rmcp::model::RequestId;
use tokio_util::sync::CancellationToken;

use super::repeating::Returned;

/// The calls of one client that are in flight. A clone is the same calls.
#[derive(Clone, Default)]
pub(super) struct Calls(Arc<Registry>);

#[derive(Default)]
struct Registry {
    next: AtomicU64,
    /// By a number of ours: a client may use one request id for two calls at once.
    entries: Mutex<Vec<(u64, RequestId, CancellationToken)>>,
}

/// One call; its drop removes its entry.
pub(super) struct Call {
    calls: Calls,
    number: u64,
    cancelled: CancellationToken,
    left: CancellationToken,
    /// What it brings where it is repeated.
    pub(super) returned: Option<Returned>,
    /// The client's session. rmcp cancels its calls only seconds after its end.
    session: Option<CancellationToken>,
}

impl Calls {
    /// Registers a call. `left` is rmcp's token of it, with the session's.
    pub(super) fn enter(
        &self,
        id: RequestId,
        (left, session): (CancellationToken, Option<CancellationToken>),
        returned: Option<Returned>,
    ) -> Call {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let cancelled = CancellationToken::new();
        let call = Call { calls: self.clone(), number, cancelled, left, returned, session };
        self.0.entries.lock().push((number, id, call.cancelled.clone()));
        // A notification that came before the entry existed has found nothing.
        if call.left.is_cancelled() {
            call.cancelled.cancel();
        }
        call
    }

    /// The client gives up every call with this id.
    pub(super) fn cancel(&self, id: &RequestId) {
        self.0.entries.lock().iter().filter(|entry| entry.1 == *id).for_each(|entry| entry.2.cancel());
    }
}

impl Call {
    /// Waits until the run of this call is to be stopped.
    pub(super) async fn ended(&self, detached: bool) {
        if detached { self.cancelled.cancelled().await } else { self.left().await }
    }

    /// Waits until the client no longer waits for this call.
    pub(super) async fn left(&self) {
        let session = async {
            match &self.session {
                Some(session) => session.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.left.cancelled() => {}
            () = self.cancelled.cancelled() => {}
            () = session => {}
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.calls.0.entries.lock().retain(|entry| entry.0 != self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn end_of_a_session_stops_the_run_of_its_call_unless_it_is_detached() {
        let session = CancellationToken::new();
        let tokens = (CancellationToken::new(), Some(session.clone()));
        let call = Calls::default().enter(RequestId::Number(1), tokens, None);
        assert!(call.ended(false).now_or_never().is_none());
        session.cancel();
        assert!(call.ended(false).now_or_never().is_some() && call.ended(true).now_or_never().is_none());
    }

    #[test]
    fn end_of_a_call_keeps_the_entry_of_another_with_its_id() {
        let (calls, id) = (Calls::default(), RequestId::Number(1));
        let enter = || calls.enter(id.clone(), (CancellationToken::new(), None), None);
        let (first, second) = (enter(), enter());
        drop(first);
        calls.cancel(&id);
        assert!(second.cancelled.is_cancelled());
        drop(second);
        assert!(calls.0.entries.lock().is_empty());
    }

    #[test]
    fn cancel_reaches_every_call_with_the_id_and_no_other() {
        let calls = Calls::default();
        let [one, same, other] =
            [1, 1, 2].map(|id| calls.enter(RequestId::Number(id), (CancellationToken::new(), None), None));
        calls.cancel(&RequestId::Number(1));
        assert_eq!([one, same, other].map(|call| call.cancelled.is_cancelled()), [true, true, false]);
    }
}
