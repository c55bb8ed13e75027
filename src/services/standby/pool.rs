//! The standbys, and the usage records from which the next one is chosen. Decides nothing.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use crate::{
    domain::{ConversationKey, Language, Moment, Principal, SandboxId, owner::first_of_most},
    ports::{
        engine::ImageId,
        storage::{FolderId, UnassignedFolder},
    },
    services::{janitor::Lease, sandbox::Started},
};

/// What a standby is assumed to use until one of its image has reported it, in bytes.
const MEMORY_GUESS_BYTES: u64 = 8 << 20;
/// How long no sandbox of an image is started after one failed or died, so that an engine that does not answer and an
/// image that is broken are not tried without a pause.
const BACKOFF: Duration = Duration::from_secs(5);

/// Runs of a conversation that end within the first time after each other may come faster than a standby loads, so it
/// keeps two. Within the second time they may come faster than two load, so it keeps three: one is ready while two
/// load.
const QUICK: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(1)];
/// How long after such a run a conversation keeps more than one standby.
const QUICK_KEPT: Duration = Duration::from_secs(30);
/// Standbys of one conversation.
pub(super) const STANDBYS_MAX: usize = 1 + QUICK.len();

/// How far a standby has started. Later is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// The engine is starting it.
    Starting,
    /// It can take a program.
    Ready,
    /// It has reported that what most programs need is loaded.
    Warm,
}

impl Phase {
    /// The label in metrics and on `/readyz`.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Warm => "warm",
        }
    }
}

/// The conversation that a standby is for.
pub(super) enum Assignee {
    /// One that does not exist yet. Without the folder while that is being assigned.
    Unassigned(Option<Box<dyn UnassignedFolder>>),
    /// This one, with the folder that is its `/data`.
    Conversation { key: ConversationKey, folder: FolderId },
}

/// One standby. Dropping it ends its watcher and releases its sandbox to the janitor.
pub(super) struct Standby {
    /// Shared with the watcher until the sandbox exists: one that is being started cannot be found and destroyed yet.
    pub lease: Arc<Lease>,
    pub image: ImageId,
    pub language: Language,
    pub assignee: Assignee,
    pub phase: Phase,
    pub since: Moment,
    /// It loads with more CPU than a program gets.
    pub loads_fast: bool,
    /// Requests the sandbox from the watcher.
    pub handover: oneshot::Sender<Handover>,
}

/// A request for the sandbox of a standby.
pub(super) struct Handover {
    pub reply: oneshot::Sender<Started>,
    /// Whether it waits, for a short time, until everything is loaded.
    pub when_warm: bool,
}

impl Standby {
    pub(super) fn id(&self) -> SandboxId {
        self.lease.id()
    }

    pub(super) fn is_unassigned(&self) -> bool {
        matches!(self.assignee, Assignee::Unassigned(_))
    }

    pub(super) fn is_for(&self, conversation: &ConversationKey) -> bool {
        matches!(&self.assignee, Assignee::Conversation { key, .. } if key == conversation)
    }

    /// The owner of its conversation.
    pub(super) fn owner(&self) -> Option<&Principal> {
        match &self.assignee {
            Assignee::Unassigned(_) => None,
            Assignee::Conversation { key, .. } => Some(&key.owner),
        }
    }
}

/// The last run of a conversation that may run more.
pub(super) struct RecentConversation {
    pub key: ConversationKey,
    pub language: Language,
    pub runs: u32,
    pub at: Instant,
    /// When a run last ended within each time of [`QUICK`] after the one before.
    quick_at: [Option<Instant>; QUICK.len()],
}

impl RecentConversation {
    /// How many standbys it gets: more than one while its runs follow each other faster than one is ready.
    pub(super) fn standbys_wanted(&self) -> usize {
        1 + self.quick_at.iter().flatten().filter(|at| at.elapsed() < QUICK_KEPT).count()
    }
}

#[derive(Default)]
pub(super) struct Pool {
    pub standbys: Vec<Standby>,
    /// When a language was last used.
    pub languages: HashMap<Language, Instant>,
    /// Oldest first.
    pub recent: Vec<RecentConversation>,
    /// Conversations in which runs are in progress or sessions are being opened, and how many.
    pub in_use: HashMap<ConversationKey, usize>,
    /// When the last run ended.
    pub quiet_since: Option<Instant>,
    /// The most that a standby of an image has reported, in bytes.
    memory_max: HashMap<ImageId, u64>,
    backoff_until: HashMap<ImageId, Instant>,
}

impl Pool {
    pub(super) fn begin_use(&mut self, key: &ConversationKey) {
        *self.in_use.entry(key.clone()).or_default() += 1;
    }

    pub(super) fn end_use(&mut self, key: &ConversationKey) {
        if let Some(uses) = self.in_use.get_mut(key) {
            *uses -= 1;
        }
        self.in_use.retain(|_, uses| *uses > 0);
        if self.in_use.is_empty() {
            self.quiet_since = Some(Instant::now());
        }
    }

    /// Removes the standby at the best index, by `rank`, of those that match.
    pub(super) fn take_best<R: Ord>(
        &mut self,
        matches: impl Fn(&Standby) -> bool,
        rank: impl Fn(&Standby) -> R,
    ) -> Option<Standby> {
        let matching = (0..self.standbys.len()).filter(|&at| matches(&self.standbys[at]));
        let best = matching.max_by_key(|&at| rank(&self.standbys[at]))?;
        Some(self.standbys.swap_remove(best))
    }

    /// Takes the folder of the best unassigned standby of an image. The standby stays, so that what its watcher reports
    /// meanwhile is not lost. None that is being started: its engine mounts the folder by its path, which an assignment
    /// changes, and a kubelet makes a folder of that path, whose files no conversation would have.
    pub(super) fn take_folder(&mut self, image: &ImageId) -> Option<(SandboxId, Box<dyn UnassignedFolder>)> {
        let is_free = |standby: &&mut Standby| {
            standby.image == *image
                && standby.phase != Phase::Starting
                && matches!(standby.assignee, Assignee::Unassigned(Some(_)))
        };
        let best = self.standbys.iter_mut().filter(is_free).max_by_key(|standby| standby.phase)?;
        let id = best.id();
        let Assignee::Unassigned(folder) = &mut best.assignee else { return None };
        Some((id, folder.take()?))
    }

    /// Gives back a folder that was not assigned; returns it when its standby is gone.
    pub(super) fn return_folder(
        &mut self,
        id: SandboxId,
        folder: Box<dyn UnassignedFolder>,
    ) -> Option<Box<dyn UnassignedFolder>> {
        let Some(standby) = self.get_mut(id) else { return Some(folder) };
        standby.assignee = Assignee::Unassigned(Some(folder));
        None
    }

    fn get_mut(&mut self, id: SandboxId) -> Option<&mut Standby> {
        self.standbys.iter_mut().find(|standby| standby.id() == id)
    }

    /// How many are for this conversation.
    pub(super) fn count_for(&self, key: &ConversationKey, image: &ImageId) -> usize {
        self.standbys.iter().filter(|standby| standby.image == *image && standby.is_for(key)).count()
    }

    /// How many are for the conversations of each owner.
    pub(super) fn by_owner(&self) -> HashMap<&Principal, usize> {
        count(self.standbys.iter().filter_map(Standby::owner))
    }

    /// The owners who have the most, when this one has one more.
    pub(super) fn largest_owners<'a>(&'a self, newcomer: Option<&'a Principal>) -> HashSet<&'a Principal> {
        let counts = count(self.standbys.iter().filter_map(Standby::owner).chain(newcomer));
        let most = counts.values().copied().max();
        counts.into_iter().filter(|(_, count)| Some(*count) == most).map(|(owner, _)| owner).collect()
    }

    /// How many are loading with more CPU than a program gets.
    pub(super) fn loading(&self) -> usize {
        self.standbys.iter().filter(|standby| standby.loads_fast && standby.phase != Phase::Warm).count()
    }

    /// Notes that a standby has the CPU of a program.
    pub(super) fn record_limited(&mut self, id: SandboxId) {
        if let Some(standby) = self.get_mut(id) {
            standby.loads_fast = false;
        }
    }

    /// One that its conversation does not need besides its others, the one that has loaded least.
    pub(super) fn surplus(&self, wanted: impl Fn(&RecentConversation) -> usize) -> Option<usize> {
        let is_surplus = |standby: &Standby| {
            let recent = self.recent.iter().find(|recent| standby.is_for(&recent.key));
            recent.is_some_and(|recent| self.count_for(&recent.key, &standby.image) > wanted(recent))
        };
        let surplus = (0..self.standbys.len()).filter(|&at| is_surplus(&self.standbys[at]));
        surplus.min_by_key(|&at| self.standbys[at].phase)
    }

    /// Notes a run that has ended; whether its language is newly in use.
    pub(super) fn record_run(&mut self, key: &ConversationKey, language: &Language, recent_max: usize) -> bool {
        let known = self.recent.iter().position(|recent| recent.key == *key);
        let known = known.map(|at| self.recent.remove(at));
        let (at, runs) = (Instant::now(), known.as_ref().map_or(0, |known| known.runs) + 1);
        let since_last = known.as_ref().filter(|known| known.language == *language).map(|known| known.at.elapsed());
        let mut quick_at = known.map(|known| known.quick_at).unwrap_or_default();
        for (quick_at, within) in quick_at.iter_mut().zip(QUICK) {
            if since_last.is_some_and(|since| since < within) {
                *quick_at = Some(at);
            }
        }
        self.recent.push(RecentConversation { key: key.clone(), language: language.clone(), runs, at, quick_at });
        if self.recent.len() > recent_max {
            // Of the owner who has the most, so that the others' are not forgotten for them.
            let oldest = first_of_most(self.recent.iter().map(|recent| &recent.key.owner));
            self.recent.remove(oldest.unwrap_or(0));
        }
        self.record_language(language)
    }

    /// Notes that a language was used; whether it is newly in use.
    pub(super) fn record_language(&mut self, language: &Language) -> bool {
        self.languages.insert(language.clone(), Instant::now()).is_none()
    }

    /// Records how far a standby has started and what it uses. One that is warm may load more and report again.
    pub(super) fn record_phase(&mut self, id: SandboxId, phase: Phase, memory_bytes: Option<u64>) {
        let Some(standby) = self.standbys.iter_mut().find(|standby| standby.id() == id) else { return };
        standby.phase = phase;
        if let Some(bytes) = memory_bytes {
            let max = self.memory_max.entry(standby.image.clone()).or_default();
            *max = bytes.max(*max);
        }
    }

    /// Removes a standby that failed or died.
    pub(super) fn remove_dead(&mut self, id: SandboxId) -> Option<Standby> {
        let dead = self.take_best(|standby| standby.id() == id, |_| ())?;
        self.backoff_until.insert(dead.image.clone(), Instant::now() + BACKOFF);
        Some(dead)
    }

    /// Forgets conversations and languages that were not used lately, and images other than these.
    pub(super) fn expire(&mut self, conversation_max: Duration, language_max: Duration, images: &[ImageId]) {
        self.recent.retain(|recent| recent.at.elapsed() < conversation_max);
        self.languages.retain(|_, at| at.elapsed() < language_max);
        self.memory_max.retain(|image, _| images.contains(image));
        self.backoff_until.retain(|_, until| Instant::now() < *until);
    }

    pub(super) fn is_backing_off(&self, image: &ImageId) -> bool {
        self.backoff_until.get(image).is_some_and(|until| Instant::now() < *until)
    }

    /// What a standby of this image uses, in bytes, when it has loaded all that it loads. Each is counted with that
    /// from its start, since one may load more after its first report.
    pub(super) fn expected_bytes(&self, image: &ImageId) -> u64 {
        self.memory_max.get(image).copied().unwrap_or(MEMORY_GUESS_BYTES)
    }

    /// When the conversation of a standby last ended a run.
    pub(super) fn last_run(&self, standby: &Standby) -> Option<Instant> {
        self.recent.iter().find(|recent| standby.is_for(&recent.key)).map(|recent| recent.at)
    }
}

/// How often each owner is there.
fn count<'a>(owners: impl Iterator<Item = &'a Principal>) -> HashMap<&'a Principal, usize> {
    let mut counts: HashMap<&Principal, usize> = HashMap::new();
    for owner in owners {
        *counts.entry(owner).or_default() += 1;
    }
    counts
}

#[cfg(test)]
pub(super) mod tests;
