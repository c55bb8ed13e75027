//! How sessions end: closed by their owner or an operator, unused, with their kernel, or with the server.

use std::{
    future::pending,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use tracing::info;

use super::{
    Inner, SessionEnd, SessionView, Sessions,
    registry::{Registry, Session},
};
use crate::domain::{Code, ConversationKey, DiskLimit, Failure, Language, Principal, SessionId, TokenId};

/// How long the other sessions of a conversation stay unsuspected when one has to end: it takes a moment.
const GIVE_WAY: Duration = Duration::from_secs(10);

impl Sessions {
    /// Ends every session, and waits for their tasks.
    pub async fn stop(&self) {
        self.0.tasks.stop.cancel();
        self.end_all(SessionEnd::Server, |_| true);
        self.0.prestarted.end_all();
        self.0.tasks.end().await;
    }

    /// Ends a session; what it was. Cells that wait for it are not executed.
    ///
    /// # Errors
    /// [`Code::SessionNotFound`], [`Code::SessionEnded`].
    pub fn close(&self, who: &Principal, id: SessionId) -> Result<SessionView, Failure> {
        let session = self.0.find(who, id)?;
        let view = session.view();
        self.0.cancel_waiting(&session.conversation, &session.language);
        self.0.end(&session, SessionEnd::Closed);
        Ok(view)
    }

    /// Ends a session of any owner, for an operator; whose it was. Cells that wait for it are not executed.
    ///
    /// # Errors
    /// [`Code::SessionNotFound`].
    pub fn close_any(&self, id: SessionId) -> Result<ConversationKey, Failure> {
        let none = || Failure::new(Code::SessionNotFound, format!("sessionId: no session `{id}` is open."));
        let session = self.0.registry.get(id).ok_or_else(none)?;
        self.0.cancel_waiting(&session.conversation, &session.language);
        self.0.end(&session, SessionEnd::Operator);
        Ok(session.conversation.clone())
    }

    /// Ends the sessions of a conversation, for one that is to be deleted.
    pub fn close_all(&self, conversation: &ConversationKey) {
        self.end_all_in(conversation, SessionEnd::Closed);
    }

    /// Ends the sessions that were opened by a token.
    pub fn close_all_of(&self, token: TokenId) {
        self.end_all(SessionEnd::Closed, |session| session.conversation.owner.token() == Some(token));
    }

    /// Ends the sessions of a conversation that another server has taken, or may take.
    pub fn leave(&self, conversation: &ConversationKey) {
        self.end_all_in(conversation, SessionEnd::Server);
    }

    /// A conversation was deleted: the ends of its sessions are no longer reported, nor those of sessions that other
    /// servers left. Those that were opened since they were closed end, since their files are gone.
    pub async fn forget(&self, conversation: &ConversationKey) {
        self.close_all(conversation);
        let runners = self.0.parts.catalog.all();
        join_all(runners.iter().map(|runner| self.0.learn(conversation, &runner.language))).await;
        self.0.take_news_where(|(there, _)| there == conversation);
    }

    /// The server is about to stop: sessions that end by themselves from now on are reported after its next start.
    pub fn expect_stop(&self) {
        self.0.stopping.store(true, Ordering::Relaxed);
    }

    /// Ends those in a conversation, also those that are being opened: they are cancelled first, so that one that is
    /// added afterwards ends by itself.
    fn end_all_in(&self, conversation: &ConversationKey, end: SessionEnd) {
        if let Some(opening) = self.0.opening.remove(conversation) {
            opening.cancel();
        }
        self.end_all(end, |session| session.conversation == *conversation);
    }

    fn end_all(&self, end: SessionEnd, matches: impl Fn(&Session) -> bool) {
        for session in self.0.registry.all().iter().filter(|session| matches(session)) {
            self.0.end(session, end);
        }
    }
}

impl Registry {
    /// Whether this very session, which was just occupied, had ended by then because no cell ran in it. Where it had
    /// not, it does not end so before its cell.
    pub(super) fn ended_unused(&self, session: &Arc<Session>) -> bool {
        let is_open = self.get(session.id).is_some_and(|open| Arc::ptr_eq(&open, session));
        let end = || self.end_of(&session.conversation.owner, session.id);
        !is_open && end().is_some_and(SessionEnd::spares_cells)
    }
}

impl Inner {
    /// Cells that wait for this session are not executed; those that are sent from now on are.
    pub(super) fn cancel_waiting(&self, conversation: &ConversationKey, language: &Language) {
        if let Some(cells) = self.waiting.remove(&(conversation.clone(), language.clone())) {
            cells.cancel();
        }
    }

    /// Forgets the session when its kernel ends, and ends it when it writes too much between its cells.
    pub(super) fn follow(self: &Arc<Self>, session: &Arc<Session>) {
        let (inner, session) = (Arc::clone(self), Arc::clone(session));
        self.tasks.spawn(async move {
            let end = tokio::select! {
                biased;
                end = session.kernel.ended() => end,
                limit = inner.outgrown(&session) => SessionEnd::DiskLimit(limit),
            };
            inner.end(&session, end);
        });
    }

    /// Waits for the end of a session's kernel; how the session ended. Then it is found no more.
    pub(super) async fn ended(&self, session: &Arc<Session>) -> SessionEnd {
        let end = session.kernel.ended().await;
        self.end(session, end);
        if end != SessionEnd::Closed {
            return end;
        }
        // Where it was closed, the registry knows why.
        self.registry.end_of(&session.conversation.owner, session.id).unwrap_or(end)
    }

    /// Returns when the session must end for what it writes between its cells. Of several sessions that have the same
    /// files, the one that was used last ends first, and another only if the files still grow afterwards.
    async fn outgrown(&self, session: &Arc<Session>) -> DiskLimit {
        // Files that travel are stored after cells only.
        if self.parts.sandboxes.volumes.streamed_bytes().is_some() {
            return pending().await;
        }
        loop {
            let quota = Arc::clone(self.parts.files.quota());
            let limit = quota.outgrown(session.conversation.clone(), || session.is_busy()).await;
            let rank = (session.used(), session.id);
            let is_later =
                |other: &Arc<Session>| other.conversation == session.conversation && (other.used(), other.id) > rank;
            if !self.registry.all().iter().any(is_later) {
                return limit;
            }
            sleep(GIVE_WAY).await;
        }
    }

    pub(super) fn end_unused(&self) {
        let now = Instant::now();
        for session in self.registry.all() {
            if session.is_busy() {
                continue;
            }
            if session.is_older(self.options.age_max, self.parts.sandboxes.clock.as_ref()) {
                self.end(&session, SessionEnd::Age);
            } else if session.used() + self.options.idle_max <= now {
                self.end(&session, SessionEnd::Idle);
            }
        }
    }

    /// Forgets a session and ends its kernel; what it ended by is kept for the next caller. Not a second time.
    pub(super) fn end(&self, session: &Arc<Session>, end: SessionEnd) {
        if self.registry.remove(session, end) {
            let (id, conversation, language) = (session.id, &session.conversation, &session.language);
            info!(session = %id, %conversation, %language, ?end, "a session ended");
            // A session that is open when the server ends stays recorded, and the next server reports it.
            if end != SessionEnd::Server && !(end.is_news() && self.stopping.load(Ordering::Relaxed)) {
                self.records.closed(session.id);
            }
            session.kernel.close.cancel();
            session.release();
        }
    }
}
