//! Records in the database which sessions are open, so that callers learn when a session was lost because its server
//! stopped or died. Nothing waits for the database: a change is noted, and one task stores it.
//!
//! ```text
//! follow ── one task: reads what earlier processes of this server left, then stores what changes; at `stop` it stores
//!           the rest within a bounded time
//! ```
//!
//! A single server reads at its start which sessions it left. With several servers, any of them may be the next to open
//! a session in a conversation. It then takes the record from the database while the kernel starts; of two servers only
//! one gets it.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{
    Inner, SessionEnd, Sessions, SharedParts,
    registry::{ENDED_MAX, Session, SessionKey},
};
use crate::{
    domain::{ConversationKey, Language, SessionId, StepWatch, clock::every},
    ports::{
        database::{DatabaseError, within},
        sessions::{ServerProcess, SessionRecord, SessionStore},
    },
};

/// How long a change waits for others, so that a session that is opened for one cell is not stored.
const LINGER: Duration = Duration::from_millis(50);
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// How long one call of the database may take.
const CALL_MAX: Duration = Duration::from_secs(10);
/// How long the opening of a session waits for it.
const TAKE_MAX: Duration = Duration::from_secs(1);
/// How long the rest may take when the server stops.
const FLUSH_MAX: Duration = Duration::from_secs(5);
/// Changes that wait to be stored; more are not.
const CHANGES_MAX: usize = 10_000;
/// How long a session is kept whose caller does not come, in milliseconds. No session is open for so long.
const KEPT_MS: i64 = 30 * 24 * 3600 * 1000;
const ROUND: Duration = Duration::from_hours(1);

pub(super) struct Records {
    store: Arc<dyn SessionStore>,
    process: ServerProcess,
    /// `None` for a session that is not open any more.
    changes: Mutex<HashMap<SessionId, Option<SessionRecord>>>,
    changed: Notify,
    /// What earlier processes left was read.
    is_recovered: AtomicBool,
    /// It was logged that the database fails.
    is_failing: AtomicBool,
}

impl Records {
    pub(super) fn new(parts: &SharedParts, store: Arc<dyn SessionStore>) -> Self {
        let process = ServerProcess { instance: parts.sandboxes.instance, started_ms: parts.sandboxes.clock.unix_ms() };
        Self {
            store,
            process,
            changes: Mutex::default(),
            changed: Notify::new(),
            is_recovered: AtomicBool::new(false),
            is_failing: AtomicBool::new(false),
        }
    }

    /// Notes that a session is open.
    pub(super) fn opened(&self, session: &Session, opened_ms: i64) {
        let (conversation, language) = (session.conversation.clone(), session.language.clone());
        if !conversation.owner.is_self_test() {
            self.note(session.id, Some(SessionRecord { session: session.id, conversation, language, opened_ms }));
        }
    }

    /// Notes that a session is closed, or that its end was reported to its caller.
    pub(super) fn closed(&self, session: SessionId) {
        self.note(session, None);
    }

    fn note(&self, session: SessionId, record: Option<SessionRecord>) {
        let mut changes = self.changes.lock();
        if changes.len() < CHANGES_MAX || changes.contains_key(&session) {
            changes.insert(session, record);
            self.changed.notify_one();
        }
    }

    /// Stores what has changed; whether that worked.
    async fn store_changes(&self) -> bool {
        let mut changes = std::mem::take(&mut *self.changes.lock()).into_iter();
        while let Some((session, record)) = changes.next() {
            let stored = async {
                match &record {
                    Some(record) => self.store.record(record, self.process).await,
                    None => self.store.forget(session).await,
                }
            };
            if self.call(stored).await.is_none() {
                // What has changed since is newer.
                let mut newer = self.changes.lock();
                for (session, record) in changes.chain([(session, record)]) {
                    newer.entry(session).or_insert(record);
                }
                return false;
            }
        }
        true
    }

    /// Calls the database, for a bounded time.
    async fn call<T>(&self, call: impl Future<Output = Result<T, DatabaseError>>) -> Option<T> {
        let answer = within(CALL_MAX, call).await;
        let was_failing = self.is_failing.swap(answer.is_err(), Ordering::Relaxed);
        if let (Err(error), false) = (&answer, was_failing) {
            warn!(%error, "it cannot be stored for now which sessions are open");
        }
        answer.ok()
    }
}

impl Sessions {
    /// Reads what earlier processes of this server left, once; whether that was done.
    pub async fn recover(&self) -> bool {
        let (records, registry) = (&self.0.records, &self.0.registry);
        if !records.is_recovered.load(Ordering::Acquire) {
            let Some(left) = records.call(records.store.left(records.process, ENDED_MAX)).await else { return false };
            let is_alone = self.0.parts.peers.is_alone();
            for session in left {
                // Variables that a new session has by now are not gone.
                let is_news = is_alone && registry.of(&session.conversation, &session.language).is_none();
                registry.add_left(session, is_news, is_alone);
            }
            records.is_recovered.store(true, Ordering::Release);
        }
        true
    }

    /// Stores which sessions are open until `stop`, then the rest.
    pub async fn follow(&self, stop: CancellationToken) {
        let (records, clock) = (&self.0.records, &self.0.parts.sandboxes.clock);
        while !self.recover().await && stop.run_until_cancelled(sleep(TRY_AGAIN)).await.is_some() {}
        let mut rounds = every(ROUND);
        let steps = StepWatch::default();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = rounds.tick() => {
                    if let Some(now) = steps.settled_ms(clock.as_ref()) {
                        let forgetting = records.call(records.store.forget_before(now.saturating_sub(KEPT_MS)));
                        stop.run_until_cancelled(forgetting).await;
                    }
                }
                () = records.changed.notified() => {
                    stop.run_until_cancelled(sleep(LINGER)).await;
                    if !records.store_changes().await {
                        stop.run_until_cancelled(sleep(TRY_AGAIN)).await;
                        records.changed.notify_one();
                    }
                }
            }
        }
        // The end of a session that could not be stored is not reported.
        drop(timeout(FLUSH_MAX, records.store_changes()).await);
    }
}

impl Inner {
    /// Learns which sessions other servers left of a conversation and language. No longer than a kernel takes to start.
    pub(super) async fn learn(&self, conversation: &ConversationKey, language: &Language) {
        if self.parts.peers.is_alone() {
            return;
        }
        let taken = timeout(TAKE_MAX, self.records.store.take(conversation, language, self.records.process)).await;
        for left in taken.ok().and_then(Result::ok).unwrap_or_default() {
            self.registry.add_left(left, true, false);
        }
    }

    /// How the last session there ended, if that was not yet reported to its next caller.
    pub(super) fn take_news(&self, conversation: &ConversationKey, language: &Language) -> Option<SessionEnd> {
        self.take_news_where(|(there, of)| there == conversation && of == language)
    }

    pub(super) fn take_news_where(&self, is_there: impl Fn(&SessionKey) -> bool) -> Option<SessionEnd> {
        let (news, reported) = self.registry.take_news(is_there);
        for session in reported {
            self.records.closed(session);
        }
        news
    }
}
