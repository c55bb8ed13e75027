//! Sessions: sandboxes that keep an interpreter, a Jupyter kernel, between the cells of a conversation and a language.
//!
//! ```text
//! Sessions::open ── one task a session (`kernel`): owns its lease and streams; ends with the kernel or by `close`
//! Sessions::start ── one task that ends idle and old sessions
//! Sessions::follow ── one task that records which are open (`records`)
//! ```
//!
//! A session belongs to one conversation of one owner and is in one sandbox with the isolation of a run. It ends when
//! it is closed, idle or too old, when another session needs its memory, with the server, or with its kernel; the next
//! caller gets the reason. A cell is executed once: nothing here sends it a second time. A cell is a run, so its queue,
//! its events and its report are those of `services::runs`, which calls [`Sessions::execute`]. Knows no surface and no
//! kernel by name.

mod access;
mod cell;
mod display;
mod ending;
mod files;
mod kernel;
pub mod message;
mod progress;
mod queue;
mod records;
mod registry;
mod resources;
mod share;
mod view;

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::info;

pub use self::view::{SessionEnd, SessionState, SessionView, Setup};
use self::{access::WaitingCells, kernel::Kernel, records::Records, registry::Registry, resources::PrestartedKernels};
pub(super) use self::{
    access::{KernelLink, NOT_EXECUTED, WaitingCell},
    kernel::own_message,
    queue::{MessageSender, Subscription, queue},
    registry::{Busy, Session},
};
pub(super) use self::{
    cell::{Cell, LineMeter, TEXT_BYTES_MAX, fits},
    display::{DisplayFile, printed_bytes},
    progress::{OomKills, Progress},
    view::CellEnd,
};
use super::{shared_parts::SharedParts, shares::WeakMap, tasks::Tasks};
use crate::{
    domain::{Code, ConversationId, ConversationKey, Failure, Language, Principal, SessionId, clock::every},
    ports::{runner::Runner, sessions::SessionStore},
};

/// The longest code that a kernel is asked about, in bytes. It is held several times while the kernel does not answer.
const ASKED_CODE_BYTES_MAX: usize = 256 << 10;

/// How often idle and old sessions are looked for.
const ROUND: Duration = Duration::from_secs(5);

/// How many sessions there are, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionsOptions {
    /// What the memory limits of all sessions together may be, in bytes.
    pub memory_bytes_max: u64,
    /// How long a session stays after its last use.
    pub idle_max: Duration,
    /// How old a session may become.
    pub age_max: Duration,
}

/// The service. A clone is the same.
#[derive(Clone)]
pub struct Sessions(Arc<Inner>);

struct Inner {
    parts: SharedParts,
    options: SessionsOptions,
    registry: Arc<Registry>,
    /// Shared by the sessions that are being opened in a conversation; cancelled when all there are ended.
    opening: WeakMap<ConversationKey, CancellationToken>,
    waiting: WaitingCells,
    records: Records,
    prestarted: PrestartedKernels,
    /// The server is about to stop.
    stopping: AtomicBool,
    tasks: Tasks,
}

impl Sessions {
    /// `records` is where it is recorded which sessions are open; without it, callers get no report after a restart.
    pub fn new(parts: SharedParts, records: Arc<dyn SessionStore>, options: SessionsOptions) -> Self {
        Self(Arc::new(Inner {
            records: Records::new(&parts, records),
            parts,
            options,
            registry: Arc::default(),
            opening: WeakMap::default(),
            waiting: WaitingCells::default(),
            prestarted: PrestartedKernels::default(),
            stopping: AtomicBool::new(false),
            tasks: Tasks::default(),
        }))
    }

    /// Starts ending idle and old sessions.
    pub fn start(&self) {
        let inner = Arc::clone(&self.0);
        self.0.tasks.spawn(async move {
            let mut rounds = every(ROUND);
            while inner.tasks.stop.run_until_cancelled(rounds.tick()).await.is_some() {
                inner.end_unused();
                inner.end_old_prestarted();
            }
        });
    }

    /// The session of a conversation and a language: the open one, or a new one.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for a runner without a kernel, [`Code::SessionsFull`], and those of [`Tokens::check`]
    /// and the engine.
    pub async fn open(&self, conversation: &ConversationKey, language: &Language) -> Result<SessionView, Failure> {
        self.open_with(conversation, language, &Setup::default()).await
    }

    /// The same with what a new one begins with.
    ///
    /// # Errors
    /// As [`Self::open`]; [`Code::InvalidArgument`] for variables or policies that are not allowed, and where the
    /// session is open with others; [`Code::InsufficientScope`] where it has more of the network than the caller.
    pub async fn open_with(
        &self,
        conversation: &ConversationKey,
        language: &Language,
        setup: &Setup,
    ) -> Result<SessionView, Failure> {
        let (runner, id) = (self.0.runner(language)?, SessionId::new());
        self.0.parts.variables.check(&setup.env)?;
        let session = self.0.open_as(id, conversation, &runner, setup).await?;
        if session.id == id {
            // Its caller knows that it is new, so its cells do not report how an earlier one ended.
            self.0.take_news(conversation, &runner.language);
        }
        Ok(session.view())
    }

    /// The same for a cell, which reports how an earlier session ended when it is executed.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(in crate::services) async fn open_for_cell(
        &self,
        conversation: &ConversationKey,
        runner: &Runner,
    ) -> Result<Arc<Session>, Failure> {
        self.0.open_as(SessionId::new(), conversation, runner, &Setup::default()).await
    }

    /// A session of this caller.
    ///
    /// # Errors
    /// [`Code::SessionNotFound`], [`Code::SessionEnded`], [`Code::SessionBusy`] while it is restarted.
    pub fn get(&self, who: &Principal, id: SessionId) -> Result<SessionView, Failure> {
        self.0.find(who, id).map(|session| session.view())
    }

    /// The conversation of a session of this caller that is open, or has ended, as far back as is kept.
    pub fn conversation(&self, who: &Principal, id: SessionId) -> Option<ConversationId> {
        self.0.registry.conversation(who, id)
    }

    /// The open sessions of a caller, newest first: of one conversation or of all.
    pub fn list(&self, who: &Principal, conversation: Option<&ConversationId>) -> Vec<SessionView> {
        let mut all = self.all();
        all.retain(|session| {
            session.conversation.owner == *who && conversation.is_none_or(|wanted| *wanted == session.conversation.id)
        });
        all
    }

    /// Whether one of a conversation is open or is being opened.
    pub fn any_in(&self, conversation: &ConversationKey) -> bool {
        // In this order: one is registered as open before it is no longer being opened.
        self.0.opening.has(conversation)
            || self.0.registry.all().iter().any(|session| session.conversation == *conversation)
    }

    /// The open sessions of all owners, newest first.
    pub fn all(&self) -> Vec<SessionView> {
        let mut all = self.0.registry.all();
        all.sort_by_key(|session| std::cmp::Reverse(session.id));
        all.iter().map(|session| session.view()).collect()
    }

    /// Interrupts the cell that runs, in the way that the kernel understands; the variables stay. Nothing happens when
    /// none runs. It goes on when its caller goes away.
    ///
    /// # Errors
    /// [`Code::SessionNotFound`], [`Code::SessionEnded`].
    pub async fn interrupt(&self, who: &Principal, id: SessionId) -> Result<(), Failure> {
        let session = self.0.find(who, id)?;
        let interrupting = self.0.tasks.spawn(async move {
            session.kernel.interrupt().await;
            if session.is_busy() {
                sleep(cell::WAKE_AFTER).await;
                session.kernel.wake().await;
            }
        });
        drop(interrupting.await);
        Ok(())
    }

    /// Ends a session and opens another one in its place, with the same id; also one that has ended and was not closed.
    /// It goes on when its caller goes away, who then finds the session under its id.
    ///
    /// # Errors
    /// As [`Self::open`] and [`Self::get`].
    pub async fn restart(&self, who: &Principal, id: SessionId) -> Result<SessionView, Failure> {
        let (inner, who) = (Arc::clone(&self.0), who.clone());
        let restarting = self.0.tasks.spawn(async move {
            let restarted = inner.tasks.stop.run_until_cancelled(inner.restart(&who, id)).await;
            restarted.unwrap_or_else(|| Err(Failure::stopping()))
        });
        restarting.await.unwrap_or_else(|_| Err(kernel::internal()))
    }

    /// Completions at a position, counted in characters: the content of Jupyter's `complete_reply`.
    ///
    /// # Errors
    /// [`Code::TooLarge`] for long code, [`Code::SessionBusy`] while a cell runs, and those of [`Self::get`].
    pub async fn complete(&self, who: &Principal, id: SessionId, code: &str, cursor: usize) -> Result<Value, Failure> {
        check_asked(code)?;
        let content = json!({"code": code, "cursor_pos": cursor});
        self.0.find_to_use(who, id)?.kernel.request("complete_request", &content).await
    }

    /// What is known of the name at a position: the content of Jupyter's `inspect_reply`.
    ///
    /// # Errors
    /// [`Code::TooLarge`] for long code, [`Code::SessionBusy`] while a cell runs, and those of [`Self::get`].
    pub async fn inspect(
        &self,
        who: &Principal,
        id: SessionId,
        code: &str,
        cursor: usize,
        detailed: bool,
    ) -> Result<Value, Failure> {
        check_asked(code)?;
        let content = json!({"code": code, "cursor_pos": cursor, "detail_level": u8::from(detailed)});
        self.0.find_to_use(who, id)?.kernel.request("inspect_request", &content).await
    }
}

fn check_asked(code: &str) -> Result<(), Failure> {
    if code.len() <= ASKED_CODE_BYTES_MAX {
        return Ok(());
    }
    let why = format!("code: it has more than {} KiB: send the part around the position.", ASKED_CODE_BYTES_MAX >> 10);
    Err(Failure::new(Code::TooLarge, why).about("code"))
}

fn restarting() -> Failure {
    Failure::new(Code::SessionBusy, "The session is being restarted: wait for it.")
}

impl Inner {
    fn runner(&self, language: &Language) -> Result<Runner, Failure> {
        let runner = self.parts.catalog.get(language)?;
        runner.check_sessions().map(|()| runner)
    }

    /// A session of this caller; the error distinguishes one that ended or restarts from one that never existed.
    fn find(&self, who: &Principal, id: SessionId) -> Result<Arc<Session>, Failure> {
        if let Some(session) = self.registry.get_of(who, id) {
            return Ok(session);
        }
        Err(match self.registry.end_of(who, id) {
            Some(_) if self.registry.is_restarting(id) => restarting(),
            Some(end) => Failure::new(Code::SessionEnded, end.sentence()),
            None => Failure::new(Code::SessionNotFound, format!("sessionId: there is no session `{id}`.")),
        })
    }

    async fn restart(self: &Arc<Self>, who: &Principal, id: SessionId) -> Result<SessionView, Failure> {
        let found = self.find(who, id);
        let ((conversation, language), setup) = match &found {
            Ok(session) => {
                self.check_tokens(who, session)?;
                self.check_use(who, session)?;
                ((session.conversation.clone(), session.language.clone()), session.setup.clone())
            }
            Err(gone) => {
                let ((conversation, language), setup) = self.registry.ended(who, id).ok_or_else(|| gone.clone())?;
                // Who asks opens it: the token that did may have ended since.
                ((ConversationKey::new(who.clone(), conversation.id), language), setup)
            }
        };
        let runner = self.runner(&language)?;
        let under_way = self.registry.restart(id).ok_or_else(restarting)?;
        self.cancel_waiting(&conversation, &language);
        if let Ok(session) = found {
            self.end(&session, SessionEnd::Restarted);
        }
        let opened = self.open_as(id, &conversation, &runner, &setup).await?;
        self.take_news(&conversation, &language);
        drop(under_way);
        // Another one may have been opened in its place.
        if opened.id == id { Ok(opened.view()) } else { self.find(who, id).map(|session| session.view()) }
    }

    /// Opens a session with this id, unless one is open already.
    async fn open_as(
        self: &Arc<Self>,
        id: SessionId,
        conversation: &ConversationKey,
        runner: &Runner,
        setup: &Setup,
    ) -> Result<Arc<Session>, Failure> {
        self.parts.peers.check(conversation)?;
        self.parts.tokens.check(&conversation.owner, &runner.language)?;
        // One at a time for a conversation and a language, so that two callers get the same session.
        let _opening = self.registry.opening(conversation, &runner.language).await;
        if let Some(session) = self.registry.of(conversation, &runner.language) {
            self.check_tokens(&conversation.owner, &session)?;
            self.check_use(&conversation.owner, &session)?;
            setup.check_same(&session.setup)?;
            session.touch();
            return Ok(session);
        }
        self.tasks.check_running()?;
        let all_ended = self.opening.of(conversation, CancellationToken::new);
        let access = self.parts.network.access(&conversation.owner, &runner.language, setup.network.as_deref())?;
        self.parts.isolation.wait(&runner.image).await?;
        let limits = self.parts.sandboxes.limits_of(runner);
        let reserved = Arc::new(self.reserve_memory(&conversation.owner, limits.memory_bytes)?);
        let access = access.filter(|_| runner.channels);
        let kernel = self.kernel(conversation, runner, &limits, setup, access.clone(), &reserved);
        let (made, ()) = tokio::join!(kernel, self.learn(conversation, &runner.language));
        let (kernel, lease) = made?;
        let session = Arc::new(Session::new(
            id,
            (conversation.clone(), runner.language.clone()),
            (setup.clone(), access),
            kernel,
            lease,
            self.parts.sandboxes.clock.as_ref(),
            limits.memory_bytes,
        ));
        self.registry.add(&session);
        self.records.opened(&session, self.parts.sandboxes.clock.unix_ms());
        self.follow(&session);
        self.parts.standbys.used_by_session(&runner.language);
        info!(session = %id, %conversation, language = %runner.language, "a session was opened");
        // The server that stops ended those that were open then.
        self.tasks.check_running().inspect_err(|_| self.end(&session, SessionEnd::Server))?;
        if all_ended.is_cancelled() {
            self.end(&session, SessionEnd::Closed);
            let why = "The sessions of the conversation were ended while this one was opened: open it again.";
            return Err(Failure::new(Code::SessionEnded, why));
        }
        self.check_tokens(&conversation.owner, &session)?;
        Ok(session)
    }
}
