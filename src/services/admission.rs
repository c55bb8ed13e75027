//! Who may start when: slots, one run at a time in a conversation, and a bounded queue in front of both.
//!
//! A [`Ticket`] is a place in the house (running or waiting), a [`Permit`] is the right to start. Both are values: they
//! are given back by being dropped. Nothing here knows what is run.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::{
    sync::{Mutex as AsyncMutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::nouns::{
    error::{Code, Failure},
    id::ConversationId,
};

/// How much may go on at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionOptions {
    /// Programs that run at once; at least one.
    pub slots: usize,
    /// Runs that wait for a slot.
    pub queue_max: usize,
    /// How long one waits.
    pub wait_max: Duration,
}

/// The gate.
#[derive(Debug)]
pub struct Admission {
    line: Arc<Line>,
    places: Arc<Semaphore>,
    slots: Arc<Semaphore>,
    turns: Arc<Turns>,
    wait_max: Duration,
}

/// One turn at a time for each conversation. An entry lives as long as somebody holds or awaits its turn.
#[derive(Debug, Default)]
struct Turns(Mutex<HashMap<ConversationId, Weak<AsyncMutex<()>>>>);

/// Who waits, in the order in which they came.
#[derive(Debug, Default)]
struct Line(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    newest: u64,
    numbers: BTreeSet<u64>,
}

/// Somebody who waits; its drop leaves the line.
#[derive(Debug)]
struct InLine {
    number: u64,
    line: Arc<Line>,
}

/// Tells how far somebody has come in the line. Holds no place.
#[derive(Debug, Clone)]
pub struct Position {
    number: u64,
    line: Arc<Line>,
}

/// A place in the house.
#[derive(Debug)]
pub struct Ticket {
    waits: InLine,
    place: OwnedSemaphorePermit,
    slots: Arc<Semaphore>,
    turns: Arc<Turns>,
    wait_max: Duration,
}

/// The right to start one program in one conversation.
#[derive(Debug)]
pub struct Permit {
    // Dropped in this order: the slot and the turn are free before the place is.
    _slot: OwnedSemaphorePermit,
    _turn: Turn,
    _place: OwnedSemaphorePermit,
}

/// A conversation's turn: while it lives, nothing else starts in the conversation.
#[derive(Debug)]
pub struct Turn {
    guard: Option<OwnedMutexGuard<()>>,
    conversation: ConversationId,
    turns: Arc<Turns>,
}

impl Admission {
    /// A gate with all its slots free.
    pub fn new(options: AdmissionOptions) -> Self {
        let slots = options.slots.max(1);
        Self {
            line: Arc::default(),
            places: Arc::new(Semaphore::new(slots + options.queue_max)),
            slots: Arc::new(Semaphore::new(slots)),
            turns: Arc::default(),
            wait_max: options.wait_max,
        }
    }

    /// A place, at once or not at all.
    ///
    /// # Errors
    /// [`Code::QueueFull`]; nothing was touched.
    pub fn enter(&self) -> Result<Ticket, Failure> {
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            Failure::new(Code::QueueFull, "Too many programs are waiting to run: try again in a few seconds.")
        })?;
        Ok(Ticket {
            waits: Line::join(&self.line),
            place,
            slots: Arc::clone(&self.slots),
            turns: Arc::clone(&self.turns),
            wait_max: self.wait_max,
        })
    }

    /// The conversation's turn, when nobody holds or awaits it.
    pub fn turn_if_idle(&self, conversation: &ConversationId) -> Option<Turn> {
        Turns::take_if_idle(&self.turns, conversation)
    }

    /// Slots nobody holds, for tests and readiness.
    pub fn free_slots(&self) -> usize {
        self.slots.available_permits()
    }
}

impl Line {
    fn join(line: &Arc<Self>) -> InLine {
        let mut waiting = line.waiting();
        waiting.newest += 1;
        let number = waiting.newest;
        waiting.numbers.insert(number);
        InLine { number, line: Arc::clone(line) }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InLine {
    fn drop(&mut self) {
        self.line.waiting().numbers.remove(&self.number);
    }
}

impl Position {
    /// How many wait from this one on to the front, itself included: 1 is next. Nothing once it waits no longer. One that
    /// waits for its own conversation may be overtaken.
    pub fn now(&self) -> Option<u32> {
        let waiting = self.line.waiting();
        let here = waiting.numbers.contains(&self.number);
        here.then(|| u32::try_from(waiting.numbers.range(..=self.number).count()).unwrap_or(u32::MAX))
    }
}

impl Ticket {
    /// Tells how far this one has come, now and later.
    pub fn position(&self) -> Position {
        Position { number: self.waits.number, line: Arc::clone(&self.waits.line) }
    }

    /// Waits for the conversation's turn, then for a slot: a conversation that waits for itself holds no slot.
    ///
    /// # Errors
    /// [`Code::QueueTimeout`] when it takes too long.
    pub async fn turn(self, conversation: &ConversationId) -> Result<Permit, Failure> {
        let Self { waits, place, slots, turns, wait_max } = self;
        let both = async {
            let turn = Turns::take(&turns, conversation).await;
            // The semaphore is never closed, so the error cannot happen; it is mapped all the same.
            let slot =
                slots.acquire_owned().await.map_err(|_| Failure::new(Code::ShuttingDown, "The server is stopping."))?;
            drop(waits);
            Ok(Permit { _slot: slot, _turn: turn, _place: place })
        };
        timeout(wait_max, both).await.unwrap_or_else(|_| {
            Err(Failure::new(
                Code::QueueTimeout,
                format!(
                    "The program waited {} s for its turn and was not started: try again later, and run one program \
                     at a time in a conversation.",
                    wait_max.as_secs()
                ),
            ))
        })
    }
}

impl Turns {
    async fn take(turns: &Arc<Self>, conversation: &ConversationId) -> Turn {
        let mutex = {
            let mut map = turns.0.lock().unwrap_or_else(PoisonError::into_inner);
            map.get(conversation).and_then(Weak::upgrade).unwrap_or_else(|| {
                let mutex = Arc::new(AsyncMutex::new(()));
                map.insert(conversation.clone(), Arc::downgrade(&mutex));
                mutex
            })
        };
        // Made before the wait: whoever gives up waiting tidies the map too.
        let mut turn = Turn { guard: None, conversation: conversation.clone(), turns: Arc::clone(turns) };
        turn.guard = Some(mutex.lock_owned().await);
        turn
    }

    fn take_if_idle(turns: &Arc<Self>, conversation: &ConversationId) -> Option<Turn> {
        let mut map = turns.0.lock().unwrap_or_else(PoisonError::into_inner);
        if map.get(conversation).is_some_and(|mutex| mutex.strong_count() > 0) {
            return None;
        }
        let mutex = Arc::new(AsyncMutex::new(()));
        map.insert(conversation.clone(), Arc::downgrade(&mutex));
        // Nobody else has it yet.
        let guard = mutex.try_lock_owned().ok();
        Some(Turn { guard, conversation: conversation.clone(), turns: Arc::clone(turns) })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut map = self.turns.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.guard.take());
        if map.get(&self.conversation).is_some_and(|mutex| mutex.strong_count() == 0) {
            map.remove(&self.conversation);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn gate(slots: usize, queue_max: usize) -> Admission {
        Admission::new(AdmissionOptions { slots, queue_max, wait_max: Duration::from_secs(10) })
    }

    fn conversation(name: &str) -> ConversationId {
        name.parse().expect("an id")
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_house_refuses_at_once_and_a_place_comes_back() {
        let gate = gate(1, 1);
        let running = gate.enter().expect("a place").turn(&conversation("a")).await.expect("a slot");
        let waiting = gate.enter().expect("a place");
        assert_eq!(gate.enter().expect_err("full").code, Code::QueueFull);
        drop(running);
        let position = waiting.position();
        assert_eq!(position.now(), Some(1));
        let behind = gate.enter().expect("a place");
        assert_eq!(behind.position().now(), Some(2));
        drop(behind);
        let second = waiting.turn(&conversation("b")).await.expect("a slot");
        assert_eq!(position.now(), None, "its turn has come");
        assert!(gate.enter().is_ok());
        drop(second);
        assert_eq!(gate.free_slots(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_conversation_takes_turns_and_blocks_nobody_else() {
        let gate = gate(2, 8);
        let first = gate.enter().expect("a place").turn(&conversation("a")).await.expect("a slot");
        let (a, b) = (conversation("a"), conversation("b"));
        let mut second = gate.enter().expect("a place").turn(&a).boxed();
        assert!((&mut second).now_or_never().is_none());
        let other = gate.enter().expect("a place").turn(&b).now_or_never();
        assert!(matches!(other, Some(Ok(_))), "another conversation has the second slot");
        drop((first, other));
        assert!(second.await.is_ok());
        assert!(gate.turns.0.lock().expect("the map").is_empty(), "no entry is left");
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends() {
        let gate = gate(1, 8);
        let held = gate.enter().expect("a place").turn(&conversation("a")).await.expect("a slot");
        let late = gate.enter().expect("a place").turn(&conversation("a")).await;
        assert_eq!(late.expect_err("late").code, Code::QueueTimeout);
        drop(held);
        assert!(gate.turns.0.lock().expect("the map").is_empty());
    }
}
