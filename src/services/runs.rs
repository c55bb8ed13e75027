//! Every run there is and every run that is remembered: one model of a run, which every surface shows.
//!
//! ```text
//! Runs::create ── one follower a run: tells the feed of its events, says now and then that it is under way,
//!                 files it as finished; ends when the run does
//! ```
//!
//! A reader pulls from the run's own log, one event at a time: it is never waited for, and it costs a cursor. Who may see a
//! run is decided here, on every access; somebody else's run and a run that never was are the same error. What is kept
//! when a run is over is bounded by count, bytes and age. Knows neither protocols nor settings.

mod events;
mod feed;
mod handle;
mod registry;
mod view;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::stream::BoxStream;
use tokio::{
    sync::broadcast,
    time::{Instant, MissedTickBehavior, interval_at, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::{
    feed::FeedItem,
    handle::{Policy, RunHandle},
    view::{RunPage, RunState, RunView},
};
use self::{feed::Notice, registry::Registry, view::Entry};
use super::execution::{Captured, Executions, RunRequest};
use crate::{
    domain::{
        clock::Clock,
        error::{Code, Failure},
        event::Event,
        id::{ConversationId, RunId},
        owner::Principal,
    },
    ports::runner::Runner,
};

/// How often a run says that it is under way.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// What is kept, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunsOptions {
    /// Runs that are remembered once they are over.
    pub kept_runs_max: usize,
    /// Bytes of those together. The newest is remembered however large it is.
    pub kept_bytes_max: usize,
    /// How long a run is remembered once it is over.
    pub kept_age: Duration,
    /// How many notices a reader of the feed may be behind before it is told that it missed some.
    pub feed_notices_max: usize,
    /// What becomes of a run whose caller goes away, where nobody said anything of it.
    pub policy: Policy,
}

impl Default for RunsOptions {
    fn default() -> Self {
        Self {
            kept_runs_max: 256,
            kept_bytes_max: 64 << 20,
            kept_age: Duration::from_hours(1),
            feed_notices_max: 4096,
            policy: Policy::default(),
        }
    }
}

/// The service. A clone is the same service.
#[derive(Clone)]
pub struct Runs(Arc<Inner>);

struct Inner {
    executions: Executions,
    registry: Registry,
    policy: Policy,
    notices: broadcast::Sender<Notice>,
    clock: Arc<dyn Clock>,
    followers: TaskTracker,
    /// Nothing will happen any more: ends the feeds.
    over: CancellationToken,
}

impl Runs {
    /// The service, with nothing to remember yet.
    pub fn new(executions: Executions, options: RunsOptions, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Inner {
            executions,
            registry: Registry::new(options),
            policy: options.policy,
            notices: broadcast::Sender::new(options.feed_notices_max.max(1)),
            clock,
            followers: TaskTracker::new(),
            over: CancellationToken::new(),
        }))
    }

    /// Whether a run would be refused now whatever it is: see [`Executions::check_capacity`].
    ///
    /// # Errors
    /// As there.
    pub fn check_capacity(&self, who: &Principal) -> Result<(), Failure> {
        self.0.executions.check_capacity(who)
    }

    /// Begins a run.
    ///
    /// # Errors
    /// As [`Executions::begin`]: what is refused has touched neither disk nor engine.
    pub fn create(&self, request: RunRequest, policy: Policy) -> Result<RunHandle, Failure> {
        let conversation = request.conversation.clone();
        let run = self.0.executions.begin(request)?;
        let entry = Arc::new(Entry { conversation, created_unix_s: self.0.clock.unix_s(), run });
        self.0.registry.add(Arc::clone(&entry));
        self.0.followers.spawn(follow(Arc::clone(&self.0), Arc::clone(&entry)));
        Ok(RunHandle { entry, policy })
    }

    /// A run as it is now.
    ///
    /// # Errors
    /// [`Code::RunNotFound`].
    pub fn get(&self, principal: &Principal, run: RunId) -> Result<RunView, Failure> {
        self.entry(principal, run).map(|entry| entry.view())
    }

    /// Runs of a caller, newest first: of one conversation or of all, older than `after`, at most `limit`.
    pub fn list(
        &self,
        principal: &Principal,
        conversation: Option<&ConversationId>,
        after: Option<RunId>,
        limit: usize,
    ) -> RunPage {
        let fits = |entry: &Entry| {
            entry.conversation.owner == *principal && conversation.is_none_or(|wanted| *wanted == entry.conversation.id)
        };
        // One more than asked for tells whether there is another page.
        let mut entries = self.0.registry.newest_first(after, limit.saturating_add(1), fits);
        let more = entries.len() > limit;
        entries.truncate(limit);
        let after = entries.last().filter(|_| more).map(|entry| entry.run.id);
        RunPage { runs: entries.iter().map(|entry| entry.view()).collect(), after }
    }

    /// Asks for a run to be stopped. [`Self::wait`] tells when its program is dead. One that is over stays as it is.
    ///
    /// # Errors
    /// [`Code::RunNotFound`].
    pub fn cancel(&self, principal: &Principal, run: RunId) -> Result<RunView, Failure> {
        let entry = self.entry(principal, run)?;
        entry.run.cancel();
        Ok(entry.view())
    }

    /// Sends a running program a piece of its standard input; `last` ends it. See [`Run::send_input`].
    ///
    /// # Errors
    /// [`Code::RunNotFound`], [`Code::InputClosed`], [`Code::InputFull`], [`Code::TooLarge`].
    pub async fn send_input(&self, principal: &Principal, run: RunId, bytes: Bytes, last: bool) -> Result<(), Failure> {
        self.entry(principal, run)?.run.send_input(bytes, last).await
    }

    /// Waits until a run is over, at most so long; answers how it is then.
    ///
    /// # Errors
    /// [`Code::RunNotFound`].
    pub async fn wait(&self, principal: &Principal, run: RunId, at_most: Duration) -> Result<RunView, Failure> {
        let entry = self.entry(principal, run)?;
        let mut run = entry.run.clone();
        let ended = async {
            drop(run.finished().await);
            events::ended(&entry.run.log).await;
        };
        drop(timeout(at_most, ended).await);
        Ok(entry.view())
    }

    /// The events of a run from this number on: those that are kept, then each as it comes; ends after the last. What fell
    /// out of the log before it was read stands there as one `Cut`, which counts all that the log has dropped so far.
    ///
    /// # Errors
    /// [`Code::RunNotFound`].
    pub fn events(&self, principal: &Principal, run: RunId, from: u64) -> Result<BoxStream<'static, Event>, Failure> {
        self.entry(principal, run).map(|entry| events::stream(Arc::clone(&entry.run.log), from))
    }

    /// What a run printed after this event, as far as it is kept.
    ///
    /// # Errors
    /// [`Code::RunNotFound`].
    pub fn output(&self, principal: &Principal, run: RunId, after: u64) -> Result<(Captured, Captured), Failure> {
        self.entry(principal, run).map(|entry| entry.output(after))
    }

    /// What a run printed after one event up to another, that included, as far as it is kept.
    ///
    /// # Errors
    /// [`Code::RunNotFound`].
    pub fn output_until(
        &self,
        principal: &Principal,
        run: RunId,
        after: u64,
        last: u64,
    ) -> Result<(Captured, Captured), Failure> {
        self.entry(principal, run).map(|entry| entry.output_until(after, last))
    }

    /// What happens to all runs of a caller from now on; ends when the service does.
    pub fn feed(&self, principal: &Principal) -> BoxStream<'static, FeedItem> {
        feed::stream(self.0.notices.subscribe(), principal.clone(), self.0.over.clone())
    }

    /// The runners known now, ordered by language.
    pub fn runners(&self) -> Arc<[Runner]> {
        self.0.executions.runners()
    }

    /// Sandboxes that stand by for a runner.
    pub fn standing_by(&self, runner: &Runner) -> usize {
        self.0.executions.standing_by(runner)
    }

    /// What becomes of a run whose caller goes away: what it asked for, else what is usual here.
    pub fn policy(&self, detach: Option<bool>) -> Policy {
        match detach {
            Some(true) => Policy::Detached,
            Some(false) => Policy::CancelWhenLeft,
            None => self.0.policy,
        }
    }

    /// Runs that are waiting or running.
    pub fn under_way(&self) -> usize {
        self.0.registry.under_way()
    }

    /// Admits nothing more, lets runs end for a while, then cancels them, detached ones too; then ends every feed.
    pub async fn stop(&self, grace: Duration) {
        self.0.executions.stop(grace).await;
        self.0.followers.close();
        self.0.followers.wait().await;
        self.0.over.cancel();
    }

    fn entry(&self, principal: &Principal, run: RunId) -> Result<Arc<Entry>, Failure> {
        self.0.registry.get(run).filter(|entry| entry.conversation.owner == *principal).ok_or_else(|| {
            let why = format!("runId: there is no run `{run}`, or it is no longer kept: run the program again.");
            Failure::new(Code::RunNotFound, why)
        })
    }
}

/// Follows a run to its end. Ends by itself: every run ends, and the last event of its log says so.
async fn follow(inner: Arc<Inner>, entry: Arc<Entry>) {
    let mut newest = entry.run.log.subscribe();
    let mut ticks = interval_at(Instant::now() + PROGRESS_EVERY, PROGRESS_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = 0;
    loop {
        newest.mark_unchanged();
        let facts = entry.run.log.facts();
        let last = facts.ended_at.is_some();
        if facts.newest > told {
            // Without a reader this is an error, and none of ours.
            drop(inner.notices.send(Notice::new(&entry, told + 1, last)));
            told = facts.newest;
        }
        if last {
            break;
        }
        tokio::select! {
            changed = newest.changed() => if changed.is_err() { break },
            _ = ticks.tick() => entry.run.log.progress(),
        }
    }
    inner.registry.finished(&entry);
}
