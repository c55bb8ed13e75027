//! What an operator sees and changes of every owner. Each change is reported to the observers with the token that made
//! it.
//!
//! ```text
//! check ── one task for each round of checks: ends by itself, also when its caller goes away
//! ```
//!
//! Only this service acts on runs, sessions and conversations of owners other than the caller. Current figures are
//! those of this process; the history is that of all servers on the database.

mod activity;
mod sizes;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use secrecy::SecretString;
use tokio::{sync::Mutex as AsyncMutex, time::timeout};
use tracing::info;

use self::sizes::Sizes;
pub use self::{
    activity::{Activity, Part, Refusals, Span},
    sizes::{Measured, SizeCursor, SizePage, Sized},
};
use super::{
    history::History,
    network::Policies,
    runs::{RunState, RunView, Runs},
    sessions::SessionView,
    shared_parts::SharedParts,
    stats::StatsSnapshot,
    tokens::NewToken,
    tools::Directory,
};
use crate::{
    domain::{
        Code, ConversationKey, Failure, Principal, RunId, SessionId, TokenId, TokenRecord, clock::DAY_MS,
        finding::Finding, network::PolicyText, tools::ServerText,
    },
    ports::{
        history::UsageFilter,
        observer::{AdminAction, AdminFacts, ServerGauges, SignInFacts},
    },
};

/// How long a round of checks may take before its caller gets an error: the test of the engine, the starts that are
/// under way at its end, and the removal of their sandboxes.
const CHECK_MAX: Duration = Duration::from_mins(3);
/// Sums of a day that are read: owners times languages.
const USAGE_MAX: usize = 10_000;

/// The checks of `doctor`.
pub type Checks = Arc<dyn Fn() -> BoxFuture<'static, Vec<Finding>> + Send + Sync>;

pub struct AdminParts {
    pub runs: Runs,
    pub history: Arc<History>,
    pub stats: StatsSnapshot,
    pub has_sign_in: bool,
    pub tool_servers: Arc<Directory>,
    /// One of the observers.
    pub refusals: Arc<Refusals>,
    pub checks: Checks,
}

/// The service. A clone is the same.
#[derive(Clone)]
pub struct Admin {
    parts: Arc<AdminParts>,
    sizes: Arc<Sizes>,
    /// Held while checks run: they start sandboxes.
    checking: Arc<AsyncMutex<()>>,
}

/// What goes on now.
#[derive(Debug, Clone)]
pub struct Overview {
    pub gauges: ServerGauges,
    /// Newest first.
    pub runs: Vec<RunView>,
    /// Newest first.
    pub sessions: Vec<SessionView>,
    /// Runs that wait and that run, by owner.
    pub queue: BTreeMap<Principal, (usize, usize)>,
}

/// An owner, by a token or a folder.
#[derive(Debug, Clone, Default)]
pub struct Owner {
    /// Valid ones that were made for people.
    pub tokens: usize,
    pub connections: usize,
    pub conversations: Measured,
    /// Runs and cells that began today, in UTC, and have ended.
    pub runs_today: i64,
    pub cpu_ms_today: i64,
    /// Runs that wait or run.
    pub runs: usize,
    pub sessions: usize,
}

impl Admin {
    pub fn new(parts: AdminParts) -> Self {
        Self { parts: Arc::new(parts), sizes: Arc::default(), checking: Arc::default() }
    }

    /// What runs and waits at this moment; does not wait for it.
    pub fn overview(&self) -> Overview {
        let parts = &self.parts;
        let runs = parts.runs.all_under_way();
        let mut queue: BTreeMap<_, (usize, usize)> = BTreeMap::new();
        for run in &runs {
            let (waiting, running) = queue.entry(run.conversation.owner.clone()).or_default();
            *(if run.state == RunState::Running { running } else { waiting }) += 1;
        }
        Overview { gauges: parts.stats.now(), runs, sessions: parts.runs.sessions().all(), queue }
    }

    /// Every owner. The owner of the configured token always exists.
    ///
    /// # Errors
    /// [`Code::DatabaseUnavailable`], [`Code::Internal`] when the disk fails.
    pub async fn owners(&self) -> Result<BTreeMap<Principal, Owner>, Failure> {
        let parts = &self.parts;
        let mut owners = BTreeMap::from([(Principal::default(), Owner::default())]);
        let SharedParts { tokens, sandboxes, .. } = parts.runs.parts();
        let now = sandboxes.clock.unix_ms();
        for token in tokens.list(None).await?.into_iter().filter(|token| token.is_valid(now)) {
            let owner: &mut Owner = owners.entry(token.owner.clone()).or_default();
            *(if token.is_connection() { &mut owner.connections } else { &mut owner.tokens }) += 1;
        }
        for (name, measured) in self.sizes().await?.by_owner() {
            owners.entry(name).or_default().conversations = measured;
        }
        let today = Some(now.div_euclid(DAY_MS));
        let today = UsageFilter { owner: None, from: today, to: today };
        for used in parts.history.usage(&today, USAGE_MAX).await?.0 {
            let owner = owners.entry(used.owner).or_default();
            owner.runs_today += used.runs;
            owner.cpu_ms_today += used.cpu_ms;
        }
        for run in parts.runs.all_under_way() {
            owners.entry(run.conversation.owner).or_default().runs += 1;
        }
        for session in parts.runs.sessions().all() {
            owners.entry(session.conversation.owner).or_default().sessions += 1;
        }
        Ok(owners)
    }

    /// Conversations of all owners or of one, the largest first.
    ///
    /// # Errors
    /// [`Code::Internal`] when the disk fails.
    pub async fn conversations(
        &self,
        owner: Option<&Principal>,
        after: Option<&SizeCursor>,
        limit: usize,
    ) -> Result<SizePage, Failure> {
        Ok(self.sizes().await?.page(owner, after, limit))
    }

    async fn sizes(&self) -> Result<Sized, Failure> {
        let (sizes, now) = (Arc::clone(&self.sizes), self.shared().sandboxes.clock.unix_s());
        self.shared().files.blocking(move |store| sizes.measure(store, now)).await
    }

    /// How runs ended, how long they took and what was refused, part by part of time.
    pub async fn activity(&self, span: Span) -> Activity {
        let parts = &self.parts;
        let (now, of_part) = (self.shared().sandboxes.clock.unix_ms(), span.part_ms());
        let first = now.div_euclid(of_part) + 1 - span.parts();
        let lines = parts.history.parts(first * of_part, of_part).await.ok();
        activity::of(span, first, lines.as_deref(), &parts.refusals)
    }

    /// Makes the checks of `doctor`, one round at a time.
    ///
    /// # Errors
    /// [`Code::QueueFull`] while another round is made; [`Code::EngineUnavailable`] when it takes too long.
    pub async fn check(&self, by: &Principal) -> Result<Vec<Finding>, Failure> {
        let Ok(turn) = Arc::clone(&self.checking).try_lock_owned() else {
            let why = "The server is being checked already: try again in a minute.";
            return Err(Failure::new(Code::QueueFull, why).retry_after(30));
        };
        self.report(by, AdminAction::Checked, None, "");
        let checks = (self.parts.checks)();
        // Its sandboxes are destroyed at the end, so it is not broken off with the request.
        let task = tokio::spawn(async move {
            let findings = checks.await;
            drop(turn);
            findings
        });
        match timeout(CHECK_MAX, task).await {
            Ok(Ok(findings)) => Ok(findings),
            Ok(Err(_)) => Err(Failure::new(Code::Internal, "The check failed: the server's log says why.")),
            Err(_) => {
                let why = "The check takes too long: see whether the container engine answers.";
                Err(Failure::new(Code::EngineUnavailable, why))
            }
        }
    }

    /// Makes a token.
    ///
    /// # Errors
    /// Those of [`Tokens::create`].
    pub async fn create_token(&self, by: &Principal, new: NewToken) -> Result<(TokenRecord, SecretString), Failure> {
        let made = self.shared().tokens.create(new).await?;
        self.report(by, AdminAction::TokenCreated, Some(&made.0.owner), &made.0.id.to_string());
        Ok(made)
    }

    /// Revokes a token: what it opened ends now.
    ///
    /// # Errors
    /// Those of [`Tokens::revoke`].
    pub async fn revoke_token(&self, by: &Principal, id: TokenId) -> Result<(), Failure> {
        self.shared().tokens.revoke(id).await?;
        self.report_token(by, AdminAction::TokenRevoked, id);
        Ok(())
    }

    /// Every connection that was not ended, and every subject of another issuer, newest first; none where sign-in is
    /// off. Both are tokens that no person has, and end by being revoked.
    ///
    /// # Errors
    /// [`Code::DatabaseUnavailable`].
    pub async fn connections(&self) -> Result<Vec<TokenRecord>, Failure> {
        if !self.parts.has_sign_in {
            return Ok(Vec::new());
        }
        let SharedParts { tokens, sandboxes, .. } = self.shared();
        let now = sandboxes.clock.unix_ms();
        let mut all = tokens.list(None).await?;
        all.retain(|token| token.is_connection() && (token.is_valid(now) || token.is_refused_subject()));
        let configured = tokens.configured_id();
        for token in &mut all {
            // No token of the list has this id.
            token.parent = token.parent.filter(|parent| Some(*parent) != configured);
        }
        Ok(all)
    }

    /// Ends a connection: its tokens, and what they opened. A subject of another issuer is refused until it is allowed.
    ///
    /// # Errors
    /// Those of [`Tokens::revoke`]; [`Code::TokenNotFound`] where sign-in is off.
    pub async fn disconnect(&self, by: &Principal, id: TokenId) -> Result<(), Failure> {
        if !self.connections().await?.iter().any(|token| token.id == id && !token.is_refused_subject()) {
            let why = "There is no such connection, or it was revoked before.";
            return Err(Failure::new(Code::TokenNotFound, why));
        }
        self.shared().tokens.revoke(id).await?;
        self.report_connection(by, AdminAction::ConnectionEnded, "ended", id);
        Ok(())
    }

    /// Allows a subject of another issuer that was ended.
    ///
    /// # Errors
    /// Those of [`Tokens::restore`]; [`Code::TokenNotFound`] where sign-in is off.
    pub async fn allow(&self, by: &Principal, id: TokenId) -> Result<(), Failure> {
        if !self.parts.has_sign_in {
            return Err(Failure::new(Code::TokenNotFound, "There is no such subject that is refused."));
        }
        self.shared().tokens.restore(id).await?;
        self.report_connection(by, AdminAction::SubjectAllowed, "allowed", id);
        Ok(())
    }

    /// Cancels a run of any owner.
    ///
    /// # Errors
    /// [`Code::RunNotFound`].
    pub fn cancel(&self, by: &Principal, run: RunId) -> Result<(), Failure> {
        let of = self.parts.runs.cancel_any(run)?;
        self.report(by, AdminAction::RunCancelled, Some(&of.owner), &run.to_string());
        Ok(())
    }

    /// Ends a session of any owner.
    ///
    /// # Errors
    /// [`Code::SessionNotFound`].
    pub fn end_session(&self, by: &Principal, session: SessionId) -> Result<(), Failure> {
        let of = self.parts.runs.sessions().close_any(session)?;
        self.report(by, AdminAction::SessionEnded, Some(&of.owner), &session.to_string());
        Ok(())
    }

    /// Deletes a conversation of any owner.
    ///
    /// # Errors
    /// Those of [`Runs::remove_conversation`].
    pub async fn remove_conversation(&self, by: &Principal, conversation: &ConversationKey) -> Result<(), Failure> {
        self.parts.runs.remove_conversation(conversation).await?;
        self.report(by, AdminAction::ConversationDeleted, Some(&conversation.owner), conversation.id.as_str());
        Ok(())
    }

    /// The policies for the network access of programs.
    pub fn policies(&self) -> &Policies {
        self.shared().network.policies()
    }

    /// Makes or changes a policy for the network access of programs.
    ///
    /// # Errors
    /// Those of [`Policies::put`].
    pub async fn put_policy(&self, by: &Principal, name: &str, text: &PolicyText) -> Result<(), Failure> {
        let name = self.policies().put(name, text).await?;
        self.report(by, AdminAction::PolicyChanged, None, &name);
        Ok(())
    }

    /// Makes or changes a tool server.
    ///
    /// # Errors
    /// Those of [`Directory::put`].
    pub async fn put_tool_server(
        &self,
        by: &Principal,
        name: &str,
        text: &ServerText,
        secret: Option<&str>,
    ) -> Result<String, Failure> {
        let name = self.parts.tool_servers.put(name, text, secret).await?;
        self.report(by, AdminAction::ToolServerChanged, None, &name);
        Ok(name)
    }

    /// Deletes one that was made.
    ///
    /// # Errors
    /// Those of [`Directory::remove`].
    pub async fn remove_tool_server(&self, by: &Principal, name: &str) -> Result<(), Failure> {
        let name = self.parts.tool_servers.remove(name).await?;
        self.report(by, AdminAction::ToolServerDeleted, None, &name);
        Ok(())
    }

    /// Deletes one that was made.
    ///
    /// # Errors
    /// Those of [`Policies::remove`].
    pub async fn remove_policy(&self, by: &Principal, name: &str) -> Result<(), Failure> {
        let name = self.policies().remove(name).await?;
        self.report(by, AdminAction::PolicyDeleted, None, &name);
        Ok(())
    }

    fn shared(&self) -> &SharedParts {
        self.parts.runs.parts()
    }

    /// As a step of sign-in too.
    fn report_connection(&self, by: &Principal, action: AdminAction, step: &'static str, id: TokenId) {
        info!(step, connection = %id, "sign-in");
        let at_unix_s = self.shared().sandboxes.clock.unix_s();
        self.shared().observer.signed_in(&SignInFacts { at_unix_s, step, client: "", connection: Some(id) });
        self.report_token(by, action, id);
    }

    fn report_token(&self, by: &Principal, action: AdminAction, id: TokenId) {
        self.report(by, action, self.shared().tokens.owner_of(id).as_ref(), &id.to_string());
    }

    fn report(&self, by: &Principal, action: AdminAction, owner: Option<&Principal>, subject: &str) {
        let at_unix_s = self.shared().sandboxes.clock.unix_s();
        self.shared().observer.administered(&AdminFacts { at_unix_s, action, by, owner, subject });
    }
}
