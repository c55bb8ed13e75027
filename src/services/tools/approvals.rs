//! Questions to a person whether a call may be made.
//!
//! A question names one call exactly: the canonical bytes of its arguments, which are what is shown and what is sent,
//! and the hash of the tool's definition. An answer that allows one call is used up in one statement of the database,
//! so of two callers one gets it. A question outlives the program that asked: an answer that comes later allows the
//! identical call for a few minutes.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};
use tracing::warn;

use crate::{
    domain::{
        Clock, Code, Failure, Principal, StepWatch,
        text::sha256,
        tools::{Answered, Approval, ApprovalId, ProposedCall},
    },
    ports::{
        database::{ApprovalStore, ROUND_MAX, in_time, within},
        observer::{AdminAction, AdminFacts, Observer},
    },
    services::shares::{Shares, WeakMap},
};

/// Questions of one owner that wait for an answer; calls that ask more are refused.
const OPEN_MAX: u64 = 20;
/// How long an answer for one call, or for a conversation, holds.
const ONCE_MS: i64 = 10 * 60 * 1000;
const SESSION_MS: i64 = 60 * 60 * 1000;
/// Longer than any server.
const ALWAYS_MS: i64 = i64::MAX / 4;
/// How long answers are kept to be shown after they ended.
const KEPT_MS: i64 = 7 * 24 * 60 * 60 * 1000;
/// How often answers of other servers are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The longest arguments that a person is asked about, in bytes.
const ARGUMENTS_BYTES_MAX: usize = 64 << 10;
/// Questions that are listed, and as many answers that stand.
const LISTED_MAX: u32 = 100;

/// The service of questions.
pub struct Approvals {
    store: Arc<dyn ApprovalStore>,
    observer: Arc<dyn Observer>,
    clock: Arc<dyn Clock>,
    steps: StepWatch,
    /// How long a call waits for an answer.
    ask_max: Duration,
    /// Woken when a question of this server is answered, by its id.
    waiting: WeakMap<ApprovalId, Notify>,
    /// So that calls with the same question wait for one answer.
    asking: Mutex<HashMap<String, (ApprovalId, Instant)>>,
    /// Each owner asks one question at a time, so that the ones before are counted and known.
    turns: Shares<Principal>,
}

/// Who answers a question, and by what.
#[derive(Debug, Clone)]
pub struct Approver {
    pub who: Principal,
    /// May answer questions of every owner.
    pub is_operator: bool,
    /// `api`, `page` or `client`.
    pub by: &'static str,
}

impl Approver {
    /// The only owner whose questions this is about; `None` for those of all.
    fn owner(&self) -> Option<&str> {
        (!self.is_operator).then(|| self.who.name())
    }
}

/// What became of a question.
pub(super) enum Reply {
    /// An answer came: the call is decided on anew.
    Answered,
    Denied(String),
}

impl Approvals {
    pub fn new(
        store: Arc<dyn ApprovalStore>,
        observer: Arc<dyn Observer>,
        clock: Arc<dyn Clock>,
        ask_max: Duration,
    ) -> Self {
        let (waiting, asking, turns) = (WeakMap::default(), Mutex::default(), Shares::new(1));
        Self { store, observer, clock, steps: StepWatch::default(), ask_max, waiting, asking, turns }
    }

    /// Whether an earlier answer allows this call. One for one call is used up.
    pub(super) async fn is_granted(&self, call: &ProposedCall) -> Result<bool, Failure> {
        Ok(in_time(self.store.take_grant(call, self.clock.unix_ms())).await?.is_some())
    }

    /// Asks, and waits for the answer. `tell` gets the question. When the future is dropped the question stays.
    pub(super) async fn ask(&self, call: ProposedCall, tell: impl Fn(Approval)) -> Result<Reply, Failure> {
        if call.arguments.len() > ARGUMENTS_BYTES_MAX {
            let why = format!(
                "a person must be asked about this call, and its arguments are longer than {ARGUMENTS_BYTES_MAX} bytes"
            );
            return Ok(Reply::Denied(why));
        }
        let turn = self.turns.of(&call.conversation.owner).acquire_owned().await;
        let Some(question) = self.question(call).await? else {
            return Ok(Reply::Denied("too many questions wait for an answer already".to_owned()));
        };
        drop(turn);
        let id = question.id;
        let woken = self.waiting.of(&id, Notify::new);
        tell(question);
        loop {
            let answer = woken.notified();
            let now = in_time(self.store.approval(id, None)).await?;
            let late = || format!("a person was asked and did not answer within {} s", self.ask_max.as_secs());
            match now {
                None => return Ok(Reply::Denied(late())),
                Some(Approval { answered: Some(Answered::No), answered_by, .. }) => {
                    let by = answered_by.map(|by| format!(" ({by})")).unwrap_or_default();
                    return Ok(Reply::Denied(format!("a person said no{by}")));
                }
                Some(Approval { answered: Some(_), .. }) => return Ok(Reply::Answered),
                Some(question) if question.expires_unix_ms <= self.clock.unix_ms() => return Ok(Reply::Denied(late())),
                Some(_) => {}
            }
            tokio::select! {
                () = answer => {}
                () = sleep(LOOK_EVERY) => {}
            }
        }
    }

    /// The same question, where it was asked here and still waits.
    async fn same(&self, call: &ProposedCall) -> Result<Option<Approval>, Failure> {
        let known = {
            let mut asking = self.asking.lock();
            asking.retain(|_, (_, at)| at.elapsed() < self.ask_max);
            asking.get(&key(call)).map(|(id, _)| *id)
        };
        let Some(id) = known else { return Ok(None) };
        let found = in_time(self.store.approval(id, None)).await?;
        let now = self.clock.unix_ms();
        Ok(found.filter(|question| question.answered.is_none() && question.expires_unix_ms > now))
    }

    /// The question about a call, known or new; `None` where too many wait already.
    async fn question(&self, call: ProposedCall) -> Result<Option<Approval>, Failure> {
        if let Some(known) = self.same(&call).await? {
            return Ok(Some(known));
        }
        let now = self.clock.unix_ms();
        if in_time(self.store.open_questions(call.conversation.owner.name(), now)).await? >= OPEN_MAX {
            return Ok(None);
        }
        let question = Approval {
            id: ApprovalId::new(),
            call,
            asked_unix_ms: now,
            answered: None,
            answered_by: None,
            expires_unix_ms: now.saturating_add(i64::try_from(self.ask_max.as_millis()).unwrap_or(i64::MAX)),
        };
        in_time(self.store.ask(&question)).await?;
        let entry = (question.id, Instant::now());
        self.asking.lock().insert(key(&question.call), entry);
        Ok(Some(question))
    }

    /// The newest questions and answers of this owner, or of all where an operator asks, and older answers that stand.
    ///
    /// # Errors
    /// [`Code::DatabaseUnavailable`].
    pub async fn list(&self, by: &Approver, open: bool) -> Result<Vec<Approval>, Failure> {
        let now = self.clock.unix_ms();
        Ok(in_time(self.store.approvals(by.owner(), open, now, LISTED_MAX)).await?)
    }

    /// A question of this owner, or of any where an operator asks.
    ///
    /// # Errors
    /// [`Code::NotFound`], [`Code::DatabaseUnavailable`].
    pub async fn get(&self, by: &Approver, id: ApprovalId) -> Result<Approval, Failure> {
        let found = in_time(self.store.approval(id, by.owner())).await?;
        found.ok_or_else(|| Failure::new(Code::NotFound, "There is no such question: it is over, or never was."))
    }

    /// Answers a question.
    ///
    /// # Errors
    /// [`Code::NotFound`] also where it was answered or is over, [`Code::DatabaseUnavailable`].
    pub async fn answer(&self, by: &Approver, id: ApprovalId, answer: Answered) -> Result<Approval, Failure> {
        let owner = self.get(by, id).await?.call.conversation.owner;
        let now = self.clock.unix_ms();
        let expires = match answer {
            Answered::Once => now + ONCE_MS,
            Answered::Session => now + SESSION_MS,
            Answered::Always => ALWAYS_MS,
            Answered::No => now,
        };
        let named = format!("{} by {}", by.who.name(), by.by);
        if !in_time(self.store.answer(id, answer, &named, now, expires)).await? {
            return Err(Failure::new(Code::NotFound, "The question was answered already, or is over."));
        }
        self.wake(id);
        let action = if answer == Answered::No { AdminAction::CallDenied } else { AdminAction::CallAllowed };
        self.observe(by, action, &owner, &format!("{id} {}", answer.word()));
        self.get(by, id).await
    }

    /// Takes back an answer that stands, or a question.
    ///
    /// # Errors
    /// [`Code::NotFound`], [`Code::DatabaseUnavailable`].
    pub async fn revoke(&self, by: &Approver, id: ApprovalId) -> Result<(), Failure> {
        let owner = self.get(by, id).await?.call.conversation.owner;
        if !in_time(self.store.revoke(id, self.clock.unix_ms())).await? {
            return Err(Failure::new(Code::NotFound, "Nothing of it stands any more."));
        }
        self.wake(id);
        self.observe(by, AdminAction::ApprovalRevoked, &owner, &id.to_string());
        Ok(())
    }

    fn wake(&self, id: ApprovalId) {
        self.waiting.of(&id, Notify::new).notify_waiters();
    }

    fn observe(&self, by: &Approver, action: AdminAction, owner: &Principal, subject: &str) {
        let facts = AdminFacts { at_unix_s: self.clock.unix_s(), action, by: &by.who, owner: Some(owner), subject };
        self.observer.administered(&facts);
    }

    /// To be called at the start, and regularly.
    pub(super) async fn forget(&self) {
        let Some(now) = self.steps.settled_ms(self.clock.as_ref()) else { return };
        if let Err(error) = within(ROUND_MAX, self.store.forget_approvals(now - KEPT_MS)).await {
            warn!(%error, "answers that have ended were not deleted");
        }
    }
}

/// Names the call. Keys are kept for a while after an answer, and arguments may be long: it is a hash.
fn key(call: &ProposedCall) -> String {
    let ProposedCall { conversation, server, tool, definition, arguments } = call;
    sha256(format!("{conversation}\0{server}\0{tool}\0{definition}\0{arguments}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_about_long_arguments_has_a_short_key_of_its_own() {
        let call = |length: usize| ProposedCall {
            conversation: "c".parse().expect("a key"),
            server: "up".to_owned(),
            tool: "echo".to_owned(),
            definition: String::new(),
            arguments: "x".repeat(length),
        };
        let [one, other] = [ARGUMENTS_BYTES_MAX, ARGUMENTS_BYTES_MAX - 1].map(|length| key(&call(length)));
        assert!(one != other && one.len() == 64, "{one} {other}");
    }
}
