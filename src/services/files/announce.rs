//! Announces what changes files: to readers here and, where several servers share a database, to those of the others.
//!
//! The others get short texts, each a list of changes. What waits to be sent is bounded: where much changes at
//! once, all files of the conversation count as changed, then all of the owner, then all. While the database is
//! away nothing is kept; afterwards the others hear that any file may have changed. Readers here hear the same
//! whenever this server listens again, since it may have missed something.
//!
//! ```text
//! share ─┬─ send ── what changes here, one batch in each [`PACE`] at most
//!        └─ hear ── what changes elsewhere; each [`PROBE_EVERY`] it sends a text itself, which has to come back
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    mem,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use futures_util::StreamExt as _;
use parking_lot::Mutex;
use serde_json::json;
use tokio::{
    sync::{Notify, broadcast::Receiver},
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    domain::{ConversationKey, InstanceId, Principal, SafePath, clock::every},
    ports::{
        database::{DatabaseError, DbResult, within},
        peers::{NOTICE_BYTES_MAX, Notices},
    },
    services::shares::Rings,
};

/// How many changes a reader may be behind before it misses some.
pub(super) const BEHIND_MAX: usize = 1024;
/// The pause after each batch for the other servers.
const PACE: Duration = Duration::from_millis(250);
/// How often a text of its own shows this server that it hears the others: a pooler in transaction mode delivers none,
/// nor does a connection that was lost silently.
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// How long the database may take for a batch, and when to try again.
const ANSWER_MAX: Duration = Duration::from_secs(5);
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// How long the last batch may take while the server stops.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// What waits is at most so many changes of an owner, with paths of so many bytes, of so many owners: 6 MiB.
const CHANGES_MAX: usize = 32;
const PATH_BYTES_MAX: usize = 512;
const OWNERS_MAX: usize = 256;

/// What has changed, or may have, of an owner's files by other ways than the runs of this server: those are in the
/// events of runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Changed {
    /// `None` for all of the owner's.
    pub conversation: Option<ConversationKey>,
    /// A file, or a folder with all in it; `None` for all files.
    pub path: Option<SafePath>,
}

impl Changed {
    pub fn of(conversation: &ConversationKey, path: Option<&SafePath>) -> Self {
        Self { conversation: Some(conversation.clone()), path: path.cloned() }
    }

    /// Whether this file of the owner is among what has changed.
    pub fn covers(&self, conversation: &ConversationKey, file: &SafePath) -> bool {
        self.conversation.as_ref().is_none_or(|changed| changed == conversation)
            && self.path.as_ref().is_none_or(|path| file.is_within(path))
    }

    /// A line of a text; without an owner, any file of any owner may have changed.
    fn line(owner: Option<&Principal>, changed: &Self) -> String {
        let id = changed.conversation.as_ref().map(|conversation| conversation.id.as_str());
        json!([owner.map(Principal::name), id, changed.path.as_ref().map(SafePath::to_encoded)]).to_string()
    }

    fn parse(line: &str) -> Option<(Option<Principal>, Self)> {
        let (owner, id, path): (Option<String>, Option<String>, Option<String>) = serde_json::from_str(line).ok()?;
        let owner: Option<Principal> = owner.map(|owner| owner.parse()).transpose().ok()?;
        let id = id.map(|id| id.parse()).transpose().ok()?;
        let path = path.map(|path| SafePath::from_encoded(&path)).transpose().ok()?;
        let conversation = owner.clone().zip(id).map(|(owner, id)| ConversationKey::new(owner, id));
        Some((owner, Self { conversation, path }))
    }
}

/// What the other servers have not been sent yet.
#[derive(Debug, Default, PartialEq, Eq)]
struct Waiting {
    changes: BTreeMap<Principal, BTreeSet<Changed>>,
    /// Any file of any owner may have changed.
    is_any: bool,
}

impl Waiting {
    fn any() -> Self {
        Self { is_any: true, ..Self::default() }
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn add(&mut self, conversation: &ConversationKey, path: Option<&SafePath>) {
        let owner = &conversation.owner;
        if self.is_any {
            return;
        }
        if self.changes.len() >= OWNERS_MAX && !self.changes.contains_key(owner) {
            *self = Self::any();
            return;
        }
        let changes = self.changes.entry(owner.clone()).or_default();
        let (all, whole) = (Changed::default(), Changed::of(conversation, None));
        if changes.contains(&all) || changes.contains(&whole) {
            return;
        }
        changes.insert(Changed::of(conversation, path.filter(|path| path.as_bytes().len() <= PATH_BYTES_MAX)));
        if changes.len() > CHANGES_MAX {
            *changes = mem::take(changes).into_iter().map(|changed| Changed { path: None, ..changed }).collect();
            if changes.len() > CHANGES_MAX / 2 {
                *changes = BTreeSet::from([all]);
            }
        }
    }

    /// As texts, each of which begins with who sends it; without changes, one that says no more.
    fn texts(&self, me: InstanceId) -> Vec<String> {
        let of_owners = self
            .changes
            .iter()
            .flat_map(|(owner, changes)| changes.iter().map(move |changed| Changed::line(Some(owner), changed)));
        let any = self.is_any.then(|| Changed::line(None, &Changed::default()));
        let (mut texts, mut text) = (Vec::new(), me.to_string());
        for line in of_owners.chain(any) {
            if text.len() + 1 + line.len() > NOTICE_BYTES_MAX {
                texts.push(mem::replace(&mut text, me.to_string()));
            }
            text.push('\n');
            text.push_str(&line);
        }
        texts.push(text);
        texts
    }
}

pub(super) struct Announcements {
    readers: Rings<Changed>,
    /// Whether other servers may have to be told.
    is_shared: AtomicBool,
    waiting: Mutex<Waiting>,
    /// Something waits.
    due: Notify,
    /// Batches that did not reach the database.
    lost: AtomicU64,
}

impl Default for Announcements {
    fn default() -> Self {
        Self {
            readers: Rings::new(BEHIND_MAX),
            is_shared: AtomicBool::new(false),
            waiting: Mutex::default(),
            due: Notify::new(),
            lost: AtomicU64::new(0),
        }
    }
}

impl Announcements {
    /// What changes from now on, in all conversations of an owner.
    pub(super) fn subscribe(&self, who: &Principal) -> Receiver<Changed> {
        self.readers.subscribe(who)
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Announces a change here and elsewhere. Waits for no reader and not for the database.
    pub(super) fn announce(&self, conversation: &ConversationKey, path: Option<&SafePath>) {
        self.readers.send(&conversation.owner, || Changed::of(conversation, path));
        self.announce_elsewhere(conversation, path);
    }

    /// The same for what readers here learn otherwise.
    pub(super) fn announce_elsewhere(&self, conversation: &ConversationKey, path: Option<&SafePath>) {
        if self.is_shared.load(Ordering::Relaxed) && !conversation.owner.is_self_test() {
            self.waiting.lock().add(conversation, path);
            self.due.notify_one();
        }
    }

    /// Exchanges announcements with the other servers until `stop`.
    pub(super) async fn share(&self, me: InstanceId, notices: &dyn Notices, stop: &CancellationToken) {
        self.is_shared.store(true, Ordering::Relaxed);
        tokio::join!(self.send(me, notices, stop), stop.run_until_cancelled(self.hear(me, notices)));
    }

    async fn send(&self, me: InstanceId, notices: &dyn Notices, stop: &CancellationToken) {
        let mut is_away = false;
        while stop.run_until_cancelled(self.due.notified()).await.is_some() {
            let sent = self.send_waiting(me, notices, ANSWER_MAX).await;
            let was_away = mem::replace(&mut is_away, sent.is_err());
            match sent {
                Ok(()) if was_away => info!("other servers are told again which files change here"),
                Err(error) if !was_away => warn!(%error, "other servers are not told which files change here"),
                _ => {}
            }
            stop.run_until_cancelled(sleep(if is_away { TRY_AGAIN } else { PACE })).await;
            if is_away {
                self.due.notify_one();
            }
        }
        if !self.waiting.lock().is_empty() {
            drop(self.send_waiting(me, notices, FLUSH_MAX).await);
        }
    }

    async fn send_waiting(&self, me: InstanceId, notices: &dyn Notices, max: Duration) -> DbResult<()> {
        let texts = mem::take(&mut *self.waiting.lock()).texts(me);
        let sending = async {
            for text in &texts {
                notices.send(text).await?;
            }
            Ok(())
        };
        let sent = within(max, sending).await;
        if sent.is_err() {
            *self.waiting.lock() = Waiting::any();
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        sent
    }

    async fn hear(&self, me: InstanceId, notices: &dyn Notices) {
        let mut is_deaf = false;
        loop {
            let Err(error) = self.hear_until_lost(me, notices, &mut is_deaf).await;
            if !mem::replace(&mut is_deaf, true) {
                warn!(%error, "clients are not notified of files that change through other servers");
            }
            sleep(TRY_AGAIN).await;
        }
    }

    /// What others send counts from when this server has heard itself: then each reader hears that all may have
    /// changed, and nothing of before is left out.
    async fn hear_until_lost(&self, me: InstanceId, notices: &dyn Notices, is_deaf: &mut bool) -> DbResult<Infallible> {
        let mut heard = within(ANSWER_MAX, notices.listen()).await?;
        let (own, mut probes) = (me.to_string(), every(PROBE_EVERY));
        let (mut is_live, mut is_awaited) = (false, false);
        loop {
            tokio::select! {
                text = heard.next() => {
                    let text = text.ok_or_else(|| DatabaseError("the connection was lost".to_owned()))?;
                    let mut lines = text.lines();
                    if lines.next() == Some(own.as_str()) {
                        is_awaited = false;
                        if !mem::replace(&mut is_live, true) {
                            self.readers.send_to_all(&Changed::default());
                            if mem::take(is_deaf) {
                                info!("clients are notified again of files that change through other servers");
                            }
                        }
                    } else if is_live {
                        self.receive(lines);
                    }
                }
                _ = probes.tick() => {
                    if mem::replace(&mut is_awaited, true) {
                        let why = "a notification does not come back, as through a pooler in transaction mode";
                        return Err(DatabaseError(why.to_owned()));
                    }
                    within(ANSWER_MAX, notices.send(&own)).await?;
                }
            }
        }
    }

    /// Passes on what another server has sent. A line of a newer version may say what this one does not know.
    fn receive<'a>(&self, lines: impl Iterator<Item = &'a str>) {
        for (owner, changed) in lines.filter_map(Changed::parse) {
            match owner {
                Some(owner) => self.readers.send(&owner, || changed),
                None => self.readers.send_to_all(&changed),
            }
        }
    }
}

#[cfg(test)]
mod tests;
