//! Conversations that a client holds like a machine for a time: E2B's sandboxes and OpenAI's containers.
//!
//! Owns the list of containers and their expiry. The list is in memory only: after a restart a container is reported as
//! gone, and its files stay until retention deletes them. Expired containers are removed at the next call of this
//! service; sessions and programs have their own limits, so none runs longer because of that.
//!
//! ```text
//! Containers::remove ── one task: waits for the end of what runs, then deletes the files; ends by itself
//! ```
//!
//! With several servers, the one that knows a container has its conversation until it expires. Which conversations this
//! server may give back to the others is decided here, where runs, sessions and containers are known.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::timeout;

use super::{files::Uses, peers::Occupancy, runs::Runs, sessions::Setup};
use crate::domain::{Code, ConversationKey, Failure, Principal};

/// How many an owner holds at most, and all owners together.
const OWNER_MAX: usize = 100;
const ALL_MAX: usize = 10_000;
/// The runs of one that are cancelled when it is removed.
const RUNS_MAX: usize = 1000;
/// How long their end is waited for; a working engine takes less.
const STOP_MAX: Duration = Duration::from_secs(10);

/// Which interface it was made by; another one does not see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerApi {
    E2b,
    OpenAi,
}

/// A conversation that is held.
#[derive(Debug, Clone)]
pub struct Container {
    pub key: ConversationKey,
    pub api: ContainerApi,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// What its sessions begin with.
    pub setup: Setup,
    pub created_unix_s: i64,
    pub active_unix_s: i64,
    pub ends_unix_s: i64,
    /// Each use extends its life to so many seconds from then on: a request that names it, a program or a cell in it,
    /// or a call on its files.
    pub idle_s: Option<i64>,
}

/// The service. A clone is the same service.
#[derive(Clone)]
pub struct Containers {
    runs: Runs,
    held: Arc<Mutex<HashMap<ConversationKey, Container>>>,
}

impl Containers {
    pub fn new(runs: Runs) -> Self {
        Self { runs, held: Arc::default() }
    }

    /// Holds a conversation that was made here, for `life_s` seconds, with what `fill` sets. Nothing is started.
    ///
    /// # Errors
    /// [`Code::RateLimited`] when there are too many; [`Code::InvalidArgument`] for variables that its programs may not
    /// have.
    pub fn create(
        &self,
        key: &ConversationKey,
        api: ContainerApi,
        life_s: i64,
        fill: impl FnOnce(&mut Container),
    ) -> Result<Container, Failure> {
        let now = self.now_unix_s();
        self.with(|held| {
            let of_owner = held.keys().filter(|other| other.owner == key.owner).count();
            if of_owner >= OWNER_MAX || held.len() >= ALL_MAX {
                let why = format!("There are too many: remove one, or wait until one expires ({OWNER_MAX} at most).");
                return Err(Failure::new(Code::RateLimited, why));
            }
            self.runs.peers().check(key)?;
            let mut container = Container {
                key: key.clone(),
                api,
                name: String::new(),
                labels: BTreeMap::new(),
                setup: Setup::default(),
                created_unix_s: now,
                active_unix_s: now,
                ends_unix_s: now.saturating_add(life_s),
                idle_s: None,
            };
            fill(&mut container);
            self.runs.parts().variables.check(&container.setup.env)?;
            if container.idle_s.is_some() {
                self.uses().watch(key);
            }
            held.insert(key.clone(), container.clone());
            Ok(container)
        })
    }

    /// Changes one, which counts as a use of it. Its key is then the caller's: what is done in it is done by the
    /// caller's token, also where another token of the owner made it.
    ///
    /// # Errors
    /// [`Code::ConversationNotFound`].
    pub fn change(
        &self,
        key: &ConversationKey,
        api: ContainerApi,
        change: impl FnOnce(&mut Container),
    ) -> Result<Container, Failure> {
        let now = self.now_unix_s();
        self.with(|held| {
            let container = held.get_mut(key).filter(|container| container.api == api).ok_or_else(|| {
                let why = format!("`{}` was not found: it expired, was removed or never was.", key.id);
                Failure::new(Code::ConversationNotFound, why)
            })?;
            container.active_unix_s = now;
            change(container);
            if let Some(idle_s) = container.idle_s {
                container.ends_unix_s = now.saturating_add(idle_s);
            }
            Ok(Container { key: key.clone(), ..container.clone() })
        })
    }

    /// One of this interface, which counts as a use of it: OpenAI documents that retrieving a container keeps it.
    ///
    /// # Errors
    /// [`Code::ConversationNotFound`].
    pub fn get(&self, key: &ConversationKey, api: ContainerApi) -> Result<Container, Failure> {
        self.change(key, api, |_| ())
    }

    /// Those of an owner, newest first.
    pub fn list(&self, who: &Principal, api: ContainerApi) -> Vec<Container> {
        let mut all: Vec<_> =
            self.with(|held| held.values().filter(|one| one.key.owner == *who && one.api == api).cloned().collect());
        all.sort_by(|a, b| (b.created_unix_s, &b.key.id).cmp(&(a.created_unix_s, &a.key.id)));
        all
    }

    /// The current time, on the clock by which containers expire.
    pub fn now_unix_s(&self) -> i64 {
        self.runs.parts().sandboxes.clock.unix_s()
    }

    /// Ends what runs in one and deletes its files, which are left to retention where a program does not end. From then
    /// on it is held no more, so the deletion goes on when its caller goes away.
    ///
    /// # Errors
    /// [`Code::ConversationNotFound`]; [`Code::HeldElsewhere`], with which nothing was ended or deleted.
    pub async fn remove(&self, key: &ConversationKey, api: ContainerApi) -> Result<(), Failure> {
        self.get(key, api)?;
        self.runs.peers().check(key)?;
        self.with(|held| held.remove(key));
        self.uses().forget(key);
        for view in self.runs.list(&key.owner, Some(&key.id), None, RUNS_MAX).runs {
            if let Ok(run) = self.runs.get(&key.owner, view.run) {
                run.cancel();
            }
        }
        self.runs.sessions().close_all(key);
        let (runs, key) = (self.runs.clone(), key.clone());
        let removal = tokio::spawn(async move {
            // Until then a program holds its files.
            drop(timeout(STOP_MAX, runs.ended_in(&key)).await);
            runs.remove_conversation(&key).await
        });
        let internal = |_| Failure::new(Code::Internal, "The server failed while it deleted files: its log says why.");
        match removal.await.map_err(internal)? {
            Err(failure) if !matches!(failure.code, Code::ConversationNotFound | Code::ConversationBusy) => {
                Err(failure)
            }
            _ => Ok(()),
        }
    }

    /// Whether a conversation is held, so that this server does not give it back.
    fn holds(&self, key: &ConversationKey) -> bool {
        let now = self.now_unix_s();
        self.held.lock().get_mut(key).is_some_and(|container| self.is_alive(container, now))
    }

    /// A step on those that have not expired.
    fn with<T>(&self, step: impl FnOnce(&mut HashMap<ConversationKey, Container>) -> T) -> T {
        let now = self.now_unix_s();
        let mut held = self.held.lock();
        held.retain(|key, container| {
            let lives = self.is_alive(container, now);
            if !lives {
                self.runs.sessions().close_all(key);
                self.uses().forget(key);
            }
            lives
        });
        step(&mut held)
    }

    /// Whether one has not expired, after the uses that were not by this service.
    fn is_alive(&self, container: &mut Container, now: i64) -> bool {
        if let Some((idle_s, mut used)) = container.idle_s.zip(self.uses().last(&container.key)) {
            if used.max(container.active_unix_s).saturating_add(idle_s) <= now {
                used = used.max(self.used_by_programs(&container.key, now));
            }
            if used > container.active_unix_s {
                container.active_unix_s = used;
                container.ends_unix_s = used.saturating_add(idle_s);
            }
        }
        container.ends_unix_s > now
    }

    /// When a run or a session last used a conversation, in unix seconds: now, while a run is under way.
    fn used_by_programs(&self, key: &ConversationKey, now: i64) -> i64 {
        if !self.runs.is_idle(key) {
            return now;
        }
        let sessions = self.runs.sessions().list(&key.owner, Some(&key.id));
        let idle_s = sessions.iter().map(|view| i64::try_from(view.idle.as_secs()).unwrap_or(i64::MAX)).min();
        idle_s.map_or(0, |idle_s| now.saturating_sub(idle_s))
    }

    fn uses(&self) -> &Uses {
        self.runs.parts().files.uses()
    }
}

impl Occupancy for Containers {
    fn is_idle(&self, conversation: &ConversationKey) -> bool {
        !self.holds(conversation) && !self.has_run(conversation) && !self.runs.sessions().any_in(conversation)
    }

    fn has_run(&self, conversation: &ConversationKey) -> bool {
        !self.runs.is_idle(conversation)
    }

    fn lost(&self, conversation: &ConversationKey) {
        self.runs.sessions().leave(conversation);
    }
}
