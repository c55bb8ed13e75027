//! The open MCP sessions: their limits, and which one is closed for another.
//!
//! A session belongs to the principal that opened it. The least recently used one without a call in progress is
//! closed: one of the same principal when that has its share, otherwise of any. A call is in progress until its
//! handler has ended, because a guard travels with the request.

use std::sync::Arc;

use parking_lot::Mutex;
use rmcp::transport::streamable_http_server::session::SessionId;
use tokio::time::Instant;

use super::resumable::Manager;
use crate::domain::{
    error::{Code, Failure},
    owner::Principal,
};

/// How many sessions may be open.
#[derive(Debug, Clone, Copy)]
pub struct SessionLimits {
    pub all_max: usize,
    /// Of one principal.
    pub principal_max: usize,
}

pub(super) struct Sessions {
    pub(super) manager: Arc<Manager>,
    limits: SessionLimits,
    open: Mutex<Vec<Session>>,
}

struct Session {
    /// `None` while it is being opened.
    id: Option<SessionId>,
    who: Principal,
    used: Instant,
    /// Clones are with the requests in progress.
    calls: Arc<()>,
}

/// Among a request's extensions: the session is not closed for another while it lives.
#[derive(Clone)]
pub(super) struct InProgress(Arc<()>);

impl Sessions {
    pub(super) fn new(manager: Arc<Manager>, limits: SessionLimits) -> Self {
        Self { manager, limits, open: Mutex::default() }
    }

    /// Room for another session, which counts until [`Self::opened`] or until the result is dropped.
    ///
    /// # Errors
    /// [`Code::QueueFull`] when a call is in progress in every session that could be closed.
    pub(super) async fn room(&self, who: &Principal) -> Result<InProgress, Failure> {
        let (closed, place) = {
            let mut open = self.open.lock();
            // Sessions also end by themselves.
            open.retain(|session| match &session.id {
                Some(id) => self.manager.get(id).is_some(),
                None => Arc::strong_count(&session.calls) > 1,
            });
            let of_principal = open.iter().filter(|session| session.who == *who).count();
            let share_taken = of_principal >= self.limits.principal_max;
            let closed = if share_taken || open.len() >= self.limits.all_max {
                let idle = open.iter().enumerate().filter(|(_, session)| {
                    session.id.is_some()
                        && Arc::strong_count(&session.calls) == 1
                        && (!share_taken || session.who == *who)
                });
                let Some((oldest, _)) = idle.min_by_key(|(_, session)| session.used) else {
                    let why = "Every session that may be open has a call in progress: call without a session.";
                    return Err(Failure::new(Code::QueueFull, why));
                };
                open.swap_remove(oldest).id
            } else {
                None
            };
            let calls = Arc::new(());
            let place = InProgress(Arc::clone(&calls));
            open.push(Session { id: None, who: who.clone(), used: Instant::now(), calls });
            (closed, place)
        };
        if let Some(id) = closed {
            // A session that has ended meanwhile makes room too.
            self.manager.end(&id).await;
        }
        Ok(place)
    }

    /// The session that there was room for is open.
    pub(super) fn opened(&self, place: &InProgress, id: &str) {
        if let Some(session) = self.open.lock().iter_mut().find(|session| Arc::ptr_eq(&session.calls, &place.0)) {
            session.id = Some(id.into());
        }
    }

    /// Notes a request in a session.
    pub(super) fn used(&self, id: &str) -> Option<InProgress> {
        let mut open = self.open.lock();
        let session = open.iter_mut().find(|session| session.id.as_deref() == Some(id))?;
        session.used = Instant::now();
        Some(InProgress(Arc::clone(&session.calls)))
    }
}
