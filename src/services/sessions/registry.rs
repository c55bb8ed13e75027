//! The open sessions, and how earlier ones ended, as far back as is kept.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::{
    sync::{Mutex as AsyncMutex, OwnedMutexGuard, watch},
    time::Instant,
};

use super::{
    SessionEnd, SessionState, SessionView, Setup,
    kernel::Kernel,
    share::{self, Limits, MemoryUse, NoCapacity},
};
use crate::{
    domain::{
        Clock, ConversationId, ConversationKey, Figures, Language, Moment, Principal, SessionId, owner::first_of_most,
        text::ms,
    },
    ports::sessions::SessionRecord,
    services::{
        janitor::Lease,
        network::Access,
        shares::{self, WeakMap},
    },
};

/// Ended sessions that are remembered, so that their ends can be reported to their callers. One more replaces
/// the oldest one of the owner who has the most.
pub(super) const ENDED_MAX: usize = 1000;

pub(super) type SessionKey = (ConversationKey, Language);

/// An open session.
pub(in crate::services) struct Session {
    pub id: SessionId,
    pub conversation: ConversationKey,
    pub language: Language,
    pub setup: Setup,
    /// What its sandbox was given of the network.
    pub access: Option<Access>,
    pub(super) kernel: Kernel,
    created: Moment,
    pub memory_bytes_max: u64,
    /// CPU time of the sandbox that is reported already, in milliseconds.
    cpu_ms: AtomicU64,
    created_unix_s: i64,
    lease: Mutex<Option<Arc<Lease>>>,
    used: Mutex<Instant>,
    busy: AtomicUsize,
    cells: AtomicU64,
}

/// While it lives, cells of the session run: it does not make room for another.
pub(in crate::services) struct Busy(Arc<Session>);

impl Session {
    pub(super) fn new(
        id: SessionId,
        (conversation, language): SessionKey,
        (setup, access): (Setup, Option<Access>),
        kernel: Kernel,
        lease: Arc<Lease>,
        clock: &dyn Clock,
        memory_bytes_max: u64,
    ) -> Self {
        // Loading the interpreter is no cell's use.
        let cpu_ms = AtomicU64::new(kernel.cpu_at_ready_ms());
        Self {
            id,
            conversation,
            language,
            setup,
            access,
            kernel,
            created: Moment::now(clock),
            memory_bytes_max,
            cpu_ms,
            created_unix_s: clock.unix_s(),
            lease: Mutex::new(Some(lease)),
            used: Mutex::new(Instant::now()),
            busy: AtomicUsize::new(0),
            cells: AtomicU64::new(0),
        }
    }

    pub(in crate::services) fn view(&self) -> SessionView {
        SessionView {
            session: self.id,
            conversation: self.conversation.clone(),
            language: self.language.clone(),
            state: if self.is_busy() { SessionState::Busy } else { SessionState::Idle },
            created_unix_s: self.created_unix_s,
            idle: if self.is_busy() { Duration::ZERO } else { self.used().elapsed() },
            cells: self.cells.load(Ordering::Relaxed),
            memory_bytes_max: self.memory_bytes_max,
        }
    }

    /// Whether it was created at least so long ago. Also the time counts for which the machine was suspended, as in the
    /// deadline of its sandbox.
    pub(super) fn is_older(&self, age: Duration, clock: &dyn Clock) -> bool {
        self.created.elapsed(clock) >= age
    }

    /// When it was used last.
    pub(super) fn used(&self) -> Instant {
        *self.used.lock()
    }

    pub(in crate::services) fn touch(&self) {
        *self.used.lock() = Instant::now();
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
    }

    /// Cells will run.
    pub(in crate::services) fn occupy(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Ordering::Relaxed);
        self.touch();
        Busy(Arc::clone(self))
    }

    /// What a cell used, by what the bridge says at its end; of one that ended its kernel, by what process 1 has said.
    /// Where neither says anything, the most counts that the cell can have used in this time under this limit, so that
    /// much of the sandbox's CPU time is not the next cell's.
    pub(in crate::services) fn figures(&self, usage: &Value, wall: Duration, cpu_millis: u32) -> Figures {
        let total = usage["cpuMs"].as_u64().or_else(|| self.kernel.cpu_at_exit_ms());
        let cpu_ms = total.map(|total| total.saturating_sub(self.cpu_ms.swap(total, Ordering::Relaxed)));
        let memory_peak_bytes = usage["memoryPeakBytes"].as_u64();
        let figures = Figures { wall, cpu: cpu_ms.map(Duration::from_millis), memory_peak_bytes, ..Figures::default() };
        if figures.cpu.is_none() {
            self.cpu_ms.fetch_add(ms(figures.cpu_or_most(cpu_millis)), Ordering::Relaxed);
        }
        figures
    }

    /// Leaves the sandbox to the janitor.
    pub(super) fn release(&self) {
        let lease = self.lease.lock().take();
        drop(lease);
    }
}

impl Busy {
    /// A cell begins.
    pub(in crate::services) fn begin_cell(&self) {
        self.0.cells.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
        self.0.touch();
    }
}

#[derive(Default)]
pub(super) struct Registry {
    state: Mutex<State>,
    opening: WeakMap<SessionKey, AsyncMutex<()>>,
    /// Those that are being opened again.
    restarting: watch::Sender<HashSet<SessionId>>,
}

#[derive(Default)]
struct State {
    open: HashMap<SessionId, Arc<Session>>,
    /// Oldest first.
    ended: VecDeque<EndedSession>,
    /// Memory for sessions that are being opened, in bytes; of no owner for a kernel that is started ahead.
    reserved: HashMap<Option<Principal>, u64>,
    /// Owners that asked for sessions since the start: two at most, by which each owner is known to have others.
    owners: HashSet<Principal>,
}

struct EndedSession {
    id: SessionId,
    key: SessionKey,
    /// `None` where it is not known: an earlier process opened it.
    setup: Option<Setup>,
    end: SessionEnd,
    /// The next cell of the conversation still has to report it.
    is_news: bool,
    /// It is recorded as open until its end was reported to a caller.
    is_recorded: bool,
}

/// Memory for a session that is being opened.
pub(super) struct Reserved {
    registry: Arc<Registry>,
    owner: Option<Principal>,
    bytes: u64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut state = self.registry.state.lock();
        if let Some(reserved) = state.reserved.get_mut(&self.owner) {
            *reserved -= self.bytes;
        }
        state.reserved.retain(|_, bytes| *bytes > 0);
    }
}

/// Whether there is room for a session.
pub(super) enum SessionCapacity {
    Reserved(Reserved),
    /// These have to end first.
    Ends(Vec<Arc<Session>>),
    Full(NoCapacity),
}

/// While it lives, the session is being restarted.
pub(super) struct Restarting<'a>(&'a Registry, SessionId);

impl Drop for Restarting<'_> {
    fn drop(&mut self) {
        self.0.restarting.send_if_modified(|all| all.remove(&self.1));
    }
}

impl Registry {
    /// Notes a restart; `None` when one is under way.
    pub(super) fn restart(&self, id: SessionId) -> Option<Restarting<'_>> {
        let is_first = self.restarting.send_if_modified(|all| all.insert(id));
        // Made only where it is given out: dropping one ends the restart that is under way.
        is_first.then(|| Restarting(self, id))
    }

    pub(super) fn is_restarting(&self, id: SessionId) -> bool {
        self.restarting.borrow().contains(&id)
    }

    pub(super) fn restarting(&self) -> Vec<SessionId> {
        self.restarting.borrow().iter().copied().collect()
    }

    /// Waits until the session is not being restarted.
    pub(super) async fn restarted(&self, id: SessionId) {
        // It does not fail: the sender is here.
        drop(self.restarting.subscribe().wait_for(|all| !all.contains(&id)).await);
    }

    /// The right to open a session there; others wait.
    pub(super) async fn opening(&self, conversation: &ConversationKey, language: &Language) -> OwnedMutexGuard<()> {
        let key = (conversation.clone(), language.clone());
        self.opening.of(&key, AsyncMutex::default).lock_owned().await
    }

    pub(super) fn add(&self, session: &Arc<Session>) {
        self.state.lock().open.insert(session.id, Arc::clone(session));
    }

    pub(super) fn get(&self, id: SessionId) -> Option<Arc<Session>> {
        self.state.lock().open.get(&id).cloned()
    }

    /// An open session of this owner.
    pub(super) fn get_of(&self, who: &Principal, id: SessionId) -> Option<Arc<Session>> {
        self.get(id).filter(|session| session.conversation.owner == *who)
    }

    /// The open session of a conversation and a language.
    pub(super) fn of(&self, conversation: &ConversationKey, language: &Language) -> Option<Arc<Session>> {
        let state = self.state.lock();
        let is_it = |session: &&Arc<Session>| session.conversation == *conversation && session.language == *language;
        state.open.values().find(is_it).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<Session>> {
        self.state.lock().open.values().cloned().collect()
    }

    /// Memory for a kernel of no owner, where the limits of all together stay within `max`.
    pub(super) fn reserve_prestarted(self: &Arc<Self>, bytes: u64, max: u64) -> Option<Reserved> {
        let mut state = self.state.lock();
        let used: u64 = state.held().iter().map(|holding| holding.bytes).sum();
        (used.saturating_add(bytes) <= max).then(|| self.reserve(&mut state, None, bytes))
    }

    /// Memory for one more session of an owner. `max` is what all together may use; where several owners have asked for
    /// sessions, one holds at most three quarters of it, and at least one session.
    pub(super) fn capacity_for(self: &Arc<Self>, who: &Principal, bytes: u64, max: u64) -> SessionCapacity {
        let mut state = self.state.lock();
        let has_others = shares::has_others(&mut state.owners, who);
        let limits = Limits { all: max, owner: if has_others { max * 3 / 4 } else { max } };
        match share::ends(state.held(), who, bytes, limits) {
            Ok(ends) if ends.is_empty() => {
                SessionCapacity::Reserved(self.reserve(&mut state, Some(who.clone()), bytes))
            }
            Ok(ends) => SessionCapacity::Ends(ends.iter().filter_map(|id| state.open.get(id).cloned()).collect()),
            Err(full) => SessionCapacity::Full(full),
        }
    }

    fn reserve(self: &Arc<Self>, state: &mut State, owner: Option<Principal>, bytes: u64) -> Reserved {
        *state.reserved.entry(owner.clone()).or_default() += bytes;
        Reserved { registry: Arc::clone(self), owner, bytes }
    }

    /// Removes this very session; false when it is not there any more, or has begun a cell that is not to end so.
    pub(super) fn remove(&self, session: &Arc<Session>, end: SessionEnd) -> bool {
        let mut state = self.state.lock();
        let is_open = state.open.get(&session.id).is_some_and(|open| Arc::ptr_eq(open, session));
        if !is_open || end.spares_cells() && session.is_busy() {
            return false;
        }
        let removed = state.open.remove(&session.id);
        let key = (session.conversation.clone(), session.language.clone());
        let setup = Some(session.setup.clone());
        state.add_ended(EndedSession { id: session.id, key, setup, end, is_news: end.is_news(), is_recorded: false });
        drop(state);
        drop(removed);
        true
    }

    /// Adds a session that a server left. `is_recorded`: it stays recorded until its end was reported to a caller.
    pub(super) fn add_left(&self, left: SessionRecord, is_news: bool, is_recorded: bool) {
        let (id, key, end) = (left.session, (left.conversation, left.language), SessionEnd::Server);
        self.state.lock().add_ended(EndedSession { id, key, setup: None, end, is_news, is_recorded });
    }

    /// How a session of this owner ended.
    pub(super) fn end_of(&self, who: &Principal, id: SessionId) -> Option<SessionEnd> {
        self.state.lock().last_end(who, id).map(|ended| ended.end)
    }

    /// The conversation of a session of this owner that is open or has ended.
    pub(super) fn conversation(&self, who: &Principal, id: SessionId) -> Option<ConversationId> {
        let open = self.get_of(who, id).map(|session| session.conversation.id.clone());
        open.or_else(|| self.state.lock().last_end(who, id).map(|ended| ended.key.0.id.clone()))
    }

    /// Where a session of this owner was that has ended by itself or for others, and its environment.
    pub(super) fn ended(&self, who: &Principal, id: SessionId) -> Option<(SessionKey, Setup)> {
        let state = self.state.lock();
        let last = state.last_end(who, id)?;
        let setup = last.setup.clone().filter(|_| last.end != SessionEnd::Closed)?;
        Some((last.key.clone(), setup))
    }

    /// How the last session with these keys ended, if that was not reported before; from now on all their ends count as
    /// reported. Also the sessions that need not be recorded any more.
    pub(super) fn take_news(&self, is_there: impl Fn(&SessionKey) -> bool) -> (Option<SessionEnd>, Vec<SessionId>) {
        let (mut news, mut reported) = (None, Vec::new());
        for ended in self.state.lock().ended.iter_mut().filter(|ended| is_there(&ended.key)) {
            news = std::mem::take(&mut ended.is_news).then_some(ended.end);
            reported.extend(std::mem::take(&mut ended.is_recorded).then_some(ended.id));
        }
        (news, reported)
    }
}

impl State {
    fn last_end(&self, who: &Principal, id: SessionId) -> Option<&EndedSession> {
        self.ended.iter().rev().find(|ended| ended.id == id && ended.key.0.owner == *who)
    }

    fn add_ended(&mut self, ended: EndedSession) {
        if self.ended.len() >= ENDED_MAX {
            let oldest = first_of_most(self.ended.iter().map(|ended| &ended.key.0.owner));
            drop(oldest.and_then(|at| self.ended.remove(at)));
        }
        self.ended.push_back(ended);
    }

    /// What the sessions that are open, or being opened, may use.
    fn held(&self) -> Vec<MemoryUse> {
        let open = self.open.values().map(|session| MemoryUse {
            owner: Some(session.conversation.owner.clone()),
            bytes: session.memory_bytes_max,
            idle: (!session.is_busy()).then(|| (session.id, session.used())),
        });
        let reserved = self.reserved.iter().map(|(owner, bytes)| (owner.clone(), *bytes));
        open.chain(reserved.map(|(owner, bytes)| MemoryUse { owner, bytes, idle: None })).collect()
    }
}

#[cfg(test)]
mod tests;
