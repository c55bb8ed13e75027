//! The open MCP sessions: their limits, and which one is closed for another.
//!
//! A session belongs to the principal that opened it. The least recently used one without a call in progress is
//! closed: one of the same principal when that has its share, otherwise of the one that has the most, as long as that
//! has more than the asking one would, or as much where the asking one has none. A call is in progress until its
//! handler has ended, because a guard travels with the request.

use std::{cmp::Reverse, collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use rmcp::transport::streamable_http_server::session::SessionId;
use tokio::time::Instant;

use super::resumable::Manager;
use crate::domain::{Code, Failure, Principal};

pub(super) struct Sessions {
    pub(super) manager: Arc<Manager>,
    /// Of all, and of one principal.
    all_max: usize,
    principal_max: usize,
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
    pub(super) fn new(manager: Arc<Manager>, (all_max, principal_max): (usize, usize)) -> Self {
        Self { manager, all_max, principal_max, open: Mutex::default() }
    }

    /// Room for another session, which counts until [`Self::opened`] or until the result is dropped.
    ///
    /// # Errors
    /// [`Code::QueueFull`] when there is no session that could be closed.
    pub(super) async fn room(&self, who: &Principal) -> Result<InProgress, Failure> {
        let (closed, place) = {
            let mut open = self.open.lock();
            // Sessions also end by themselves.
            open.retain(|session| match &session.id {
                Some(id) => self.manager.get(id).is_some(),
                None => Arc::strong_count(&session.calls) > 1,
            });
            // With the new one.
            let mut held = HashMap::from([(who.clone(), 1_usize)]);
            for session in &*open {
                *held.entry(session.who.clone()).or_default() += 1;
            }
            // What another owner has to have: more, or as much where this one has none yet.
            let enough = held[who] + usize::from(held[who] > 1);
            let share_taken = held[who] > self.principal_max;
            let closed = if share_taken || open.len() >= self.all_max {
                let idle = open.iter().enumerate().filter(|(_, session)| {
                    session.id.is_some()
                        && Arc::strong_count(&session.calls) == 1
                        && (session.who == *who || (!share_taken && held[&session.who] >= enough))
                });
                let idle = idle.min_by_key(|(_, session)| (Reverse(held[&session.who]), session.used));
                let Some((oldest, _)) = idle else {
                    let why = "There is no room for another session: call without one, or close one that is open.";
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
