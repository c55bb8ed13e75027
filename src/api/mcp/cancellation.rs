//! Whether a client has given up a call: told so, or went away. rmcp tells the two by one token; only here are they kept
//! apart, since a run that goes on without its caller is still stopped by the caller's word.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rmcp::{RoleServer, model::RequestId, service::RequestContext};
use tokio_util::sync::CancellationToken;

/// The calls of one client that are under way. A clone is the same calls.
#[derive(Clone, Default)]
pub(super) struct Calls(Arc<Mutex<HashMap<RequestId, CancellationToken>>>);

/// One call; its drop ends the entry.
pub(super) struct Call {
    calls: Calls,
    id: RequestId,
    told: CancellationToken,
    left: CancellationToken,
}

impl Calls {
    /// A call has come.
    pub(super) fn enter(&self, context: &RequestContext<RoleServer>) -> Call {
        let call = Call {
            calls: self.clone(),
            id: context.id.clone(),
            told: CancellationToken::new(),
            left: context.ct.clone(),
        };
        self.lock().insert(call.id.clone(), call.told.clone());
        // A word that came before the entry was there has found nothing.
        if call.left.is_cancelled() {
            call.told.cancel();
        }
        call
    }

    /// The client said that it gives a call up.
    pub(super) fn given_up(&self, id: &RequestId) {
        if let Some(told) = self.lock().get(id) {
            told.cancel();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, CancellationToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Call {
    /// Waits until the run of this call is to be stopped.
    pub(super) async fn ended(&self, detached: bool) {
        if detached { self.told.cancelled().await } else { self.left.cancelled().await }
    }

    /// Waits until nobody waits for this call any more.
    pub(super) async fn left(&self) {
        self.left.cancelled().await;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.calls.lock().remove(&self.id);
    }
}
