//! Packages of conversations: the requested packages of each, the trees that installations made, and requests of
//! programs.
//!
//! The tool (uv or npm) resolves everything that was requested in a conversation together, so it finds conflicts, and a
//! tree depends only on the tool, the image, the index and the requirements. The tool runs in a sandbox without user
//! code that reaches only the index ([`work`]); the server parses no archive. The result is kept for the owner and put
//! into each of the owner's conversations that requests the same.
//!
//! ```text
//! Packages::install ── one tracked task an installation; goes on when its caller goes away; ended by `stop`,
//!                      and with its token
//! Packages::run     ── one task: deletes trees that were not used for long
//! ```
//!
//! [`requests`] decides which may begin, and for which token each counts. Knows neither formats of packages nor the
//! folders of conversations.

mod requests;
mod work;

use std::{pin::pin, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::requests::{Count, Job};
use super::{
    shared_parts::SharedParts,
    shares::Shares,
    tasks::Tasks,
    tokens::{Started, Tokens},
};
use crate::{
    domain::{
        Code, ConversationKey, Failure, Language, Limits, Principal, StepWatch,
        network::Policy,
        packages::{Requirements, Tool},
        text,
    },
    ports::{
        observer::PackagesCounts,
        packages::{PackageStore, StoreSize, Tree},
        storage::{FsResult, Usage},
    },
};

/// Installations of one owner that may wait for each other; more are refused.
const WAITING_MAX: usize = 16;
/// Installations of all owners at once.
const AT_ONCE_MAX: usize = 2;
/// How often an installation uses its conversation: more often than one that is idle is given back to other servers.
const USE_EVERY: Duration = Duration::from_secs(20);
/// How often trees are looked for that were not used for long.
const TRIM_EVERY: Duration = Duration::from_hours(1);
/// Changes when the same requirements lead to another tree.
const FORM: u32 = 1;

/// What is installed from where, and how much.
#[derive(Debug, Clone)]
pub struct PackagesOptions {
    /// The index of a tool; without one nothing is installed by it.
    pub python_index: Option<String>,
    pub npm_registry: Option<String>,
    /// The hosts of the indexes.
    pub policy: Policy,
    /// Certificates in PEM that the indexes may have, besides those that the image trusts.
    pub roots: Option<String>,
    /// Whether programs of packages may run while they are installed.
    pub builds: bool,
    /// The limits of the sandbox that installs.
    pub limits: Limits,
    /// How long a tree is used before its requirements are resolved again.
    pub fresh: Duration,
    /// How long a tree is kept that is not used.
    pub kept: Duration,
    /// All trees of one owner, in bytes.
    pub owner_bytes_max: u64,
}

/// The service. A clone is the same.
#[derive(Clone)]
pub struct Packages(Arc<Inner>);

struct Inner {
    parts: SharedParts,
    /// `None` where it is off.
    options: Option<PackagesOptions>,
    /// One installation at a time for each owner, so that the second of two for the same finds what the first made, and
    /// the second of two in one conversation adds to what that has by then.
    turns: Shares<Principal>,
    /// Those that run or wait.
    capacity: Shares<Principal>,
    at_once: Semaphore,
    counts: Mutex<PackagesCounts>,
    steps: StepWatch,
    tasks: Tasks,
}

/// What to install, and where.
#[derive(Debug, Clone)]
pub struct InstallRequest {
    pub conversation: ConversationKey,
    /// Whose programs will use it; an alias too.
    pub language: Language,
    /// `None`: the first that the image of the language names.
    pub tool: Option<Tool>,
    pub packages: Vec<String>,
}

/// What a conversation has now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    pub tool: Tool,
    /// Everything that was asked for, and what it needs, with versions.
    pub packages: Vec<String>,
    /// The same was installed for this owner before.
    pub reused: bool,
    pub usage: Usage,
}

/// The file in a tree that says what it is; written by our program, and read again from where programs may write.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Note {
    #[serde(default)]
    asked: Vec<String>,
    #[serde(default)]
    installed: Vec<String>,
}

impl Note {
    fn of(tree: &Tree) -> Self {
        serde_json::from_slice(&tree.note).unwrap_or_default()
    }
}

impl Packages {
    pub fn new(parts: SharedParts, options: Option<PackagesOptions>) -> Self {
        let made = Self(Arc::new(Inner {
            parts,
            options,
            turns: Shares::new(1),
            capacity: Shares::new(1 + WAITING_MAX),
            at_once: Semaphore::new(AT_ONCE_MAX),
            counts: Mutex::default(),
            steps: StepWatch::default(),
            tasks: Tasks::default(),
        }));
        made.0.parts.network.set_package_requests(Arc::<Inner>::downgrade(&made.0));
        made
    }

    /// Deletes what was not used for long, until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        while self.0.options.is_some() {
            self.0.trim().await;
            if stop.run_until_cancelled(sleep(TRIM_EVERY)).await.is_none() {
                return;
            }
        }
    }

    /// Whether packages can be installed for some language that there is.
    pub fn is_offered(&self, who: &Principal) -> bool {
        let all = self.0.parts.catalog.all();
        self.0.parts.network.may_install(who) && all.iter().any(|runner| self.0.tools(runner).next().is_some())
    }

    /// Installs packages beside those that the conversation has. When that fails, it has what it had. Goes on when the
    /// caller goes away.
    ///
    /// # Errors
    /// [`Code::PackagesOff`], [`Code::InvalidArgument`], [`Code::PackagesRefused`], [`Code::QuotaExceeded`],
    /// [`Code::QueueFull`], [`Code::Forbidden`], [`Code::HeldElsewhere`], those of [`Tokens::begin`], and those of the
    /// engine.
    pub async fn install(&self, wanted: InstallRequest) -> Result<Installed, Failure> {
        self.install_as(wanted, Tokens::begin, |_| {}).await
    }

    /// The same. `tell` receives the output of the tool as it arrives.
    async fn install_as(
        &self,
        wanted: InstallRequest,
        count: Count,
        tell: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Installed, Failure> {
        let job = self.0.admit(wanted, count)?;
        let inner = Arc::clone(&self.0);
        let task = self.0.tasks.spawn(async move {
            let conversation = job.wanted.conversation.clone();
            let mut installing = pin!(inner.run(job, &tell));
            let done = loop {
                if let Ok(done) = timeout(USE_EVERY, installing.as_mut()).await {
                    break done;
                }
                // Counts as a use.
                drop(inner.parts.peers.check(&conversation));
            };
            match &done {
                Ok(Installed { tool, packages, reused, .. }) => {
                    let (tool, count) = (tool.word(), packages.len());
                    info!(%conversation, tool, count, reused, "packages were installed");
                }
                Err(failure) => {
                    inner.counts.lock().failed += 1;
                    info!(%conversation, code = %failure.code, "packages were not installed");
                }
            }
            done
        });
        task.await.unwrap_or_else(|_| Err(internal()))
    }

    pub fn counts(&self) -> PackagesCounts {
        *self.0.counts.lock()
    }

    /// Ends the installations under way.
    pub async fn stop(&self) {
        self.0.tasks.end().await;
    }
}

impl Inner {
    async fn run(&self, job: Job, tell: &(dyn Fn(&str) + Send + Sync)) -> Result<Installed, Failure> {
        let owner = &job.wanted.conversation.owner;
        let full = |_| {
            let why = "Too many installations of this token wait: try again when some have ended.";
            Failure::new(Code::QueueFull, why).retry_after(10)
        };
        let _capacity = self.capacity.of(owner).try_acquire_owned().map_err(full)?;
        let _turn = self.turns.of(owner).acquire_owned().await.map_err(|_| internal())?;
        job.by.as_ref().map_or(Ok(()), Started::check)?;
        let (conversation, tool) = (job.wanted.conversation.clone(), job.tool);
        let had = self.on_disk(move |store| store.placed(&conversation, tool)).await?;
        let asked = Requirements::of(tool, &Note::of(&had).asked).with(job.more.clone())?;
        let key = key(&job, &asked);
        let since = before(self.parts.sandboxes.clock.unix_s(), job.options.fresh);
        let (owner, name) = (job.wanted.conversation.owner.clone(), key.clone());
        let found = self.on_disk(move |store| store.find(&owner, &name, since)).await?;
        let reused = found.is_some();
        let tree = if let Some(tree) = found {
            tree
        } else {
            let _one = self.at_once.acquire().await.map_err(|_| internal())?;
            self.make(&job, &asked, &key, tell).await?
        };
        self.put(&job, key, &tree, &had).await?;
        if reused {
            self.counts.lock().reused += 1;
        } else {
            self.counts.lock().made += 1;
            self.trim().await;
        }
        Ok(Installed { tool, packages: Note::of(&tree).installed, reused, usage: tree.usage })
    }

    /// Puts a tree into the conversation, where its quota has room for it.
    async fn put(&self, job: &Job, key: String, tree: &Tree, had: &Tree) -> Result<(), Failure> {
        let conversation = job.wanted.conversation.clone();
        let quota = Arc::clone(self.parts.files.quota());
        let writer = quota.writer(&conversation).await;
        let more = tree.usage.minus(&had.usage);
        let (store, tool) = (Arc::clone(&self.parts.store), job.tool);
        let placed = tokio::task::spawn_blocking(move || {
            writer.reserve(&more)?;
            let placed = store.put(&key, &conversation, tool);
            // Measured again with the next program.
            quota.measured(&conversation, None);
            placed.map_err(Failure::from)
        });
        placed.await.unwrap_or_else(|_| Err(internal()))
    }

    async fn trim(&self) {
        let Some(options) = &self.options else { return };
        let settled_ms = self.steps.settled_ms(self.parts.sandboxes.clock.as_ref());
        // Otherwise only what is too much is deleted, and nothing for its age.
        let since = settled_ms.map_or(i64::MIN, |now| before(now / 1000, options.kept));
        let bytes_max = options.owner_bytes_max;
        match self.on_disk(move |store| store.trim(since, bytes_max)).await {
            Ok(StoreSize { trees, bytes }) => {
                let mut counts = self.counts.lock();
                (counts.trees, counts.bytes) = (trees, bytes);
            }
            Err(failure) => warn!(%failure, "installed packages that are not used were not deleted"),
        }
    }

    async fn on_disk<T: Send + 'static>(
        &self,
        step: impl FnOnce(Arc<dyn PackageStore>) -> FsResult<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let store: Arc<dyn PackageStore> = self.parts.store.clone();
        let done = tokio::task::spawn_blocking(move || step(store)).await.map_err(|_| internal())?;
        Ok(done?)
    }
}

fn before(unix_s: i64, time: Duration) -> i64 {
    unix_s - i64::try_from(time.as_secs()).unwrap_or(i64::MAX / 2)
}

/// The name of the tree that these requirements lead to.
fn key(job: &Job, asked: &Requirements) -> String {
    let Job { tool, runner, index, options, .. } = job;
    let all = (FORM, tool.word(), &runner.image.0, index, options.builds, asked.texts());
    text::sha256(&serde_json::to_vec(&all).unwrap_or_default())
}

fn internal() -> Failure {
    Failure::new(Code::Internal, "The server could not install packages: its log says why.")
}
