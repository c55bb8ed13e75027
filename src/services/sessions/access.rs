//! Which tokens may execute code in an open session: the one that opened it, and others of its owner whose network
//! policies include all that its sandbox has; and the raw messages of its kernel, for the one service that relays them
//! to clients.
//!
//! As in Jupyter, a cell that was sent before its session was restarted or closed is not executed after it.

use std::sync::Arc;

use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    Inner, SessionEnd, Sessions,
    cell::interrupt_in_steps,
    kernel::{Kernel, own_message},
    message::{Channel, KernelMessage},
    queue::Subscription,
    registry::{Session, SessionKey},
};
use crate::{
    domain::{Code, ConversationKey, Failure, Language, Principal, SessionId},
    services::{
        network::{Access, ConnectionReporter},
        shares::WeakMap,
    },
};

/// The output of a cell that waited and was not executed.
pub(in crate::services) const NOT_EXECUTED: &str =
    "[The session was restarted or closed while this cell waited for its turn, so it was not executed.]\n";

/// Shared by the cells of one session. Cancelled when that is restarted or closed.
pub(in crate::services) type WaitingCell = Arc<CancellationToken>;

/// Entries without a cell are removed, so there are no more than runs. When one is taken out and cancelled, cells that
/// are sent from then on are executed.
pub(super) type WaitingCells = WeakMap<SessionKey, CancellationToken>;

/// A session's kernel, message by message. Its owner always reads: the kernel is waited for by its cells.
pub(in crate::services) struct KernelLink {
    pub(in crate::services) session: Arc<Session>,
    /// The kernel's messages, until it ends.
    pub(in crate::services) subscription: Subscription,
    /// Where messages for the kernel go.
    pub(in crate::services) outgoing: mpsc::Sender<KernelMessage>,
    /// Counts and reports the connections and calls of a cell.
    pub(in crate::services) reporter: Arc<ConnectionReporter>,
}

impl KernelLink {
    /// Has the bridge say what was used.
    pub(in crate::services) fn ask_figures() -> KernelMessage {
        own_message("", Channel::Bridge, "figures", &json!({})).1
    }
}

impl Sessions {
    /// Whether a caller may send code to a session, also while it is being restarted.
    ///
    /// # Errors
    /// Those of [`Sessions::get`]; [`Code::InsufficientScope`].
    pub(in crate::services) fn check_use(&self, who: &Principal, id: SessionId) -> Result<(), Failure> {
        let gone = match self.0.find(who, id) {
            Ok(session) => return self.0.check_use(who, &session),
            Err(gone) => gone,
        };
        let ((conversation, language), setup) = self.0.registry.ended(who, id).ok_or(gone)?;
        if who.token() == conversation.owner.token() {
            return Ok(());
        }
        let given = self.0.parts.network.access(&conversation.owner, &language, setup.network.as_deref())?;
        self.0.check_network(who, &conversation.owner, &language, given.as_ref())
    }

    /// Whether a cell may be sent to the session that is open, the named one or that of its conversation and language,
    /// if there is one: before the cell waits for its turn. What is returned is cancelled when the session is restarted
    /// or closed.
    ///
    /// # Errors
    /// [`Code::InsufficientScope`].
    pub(in crate::services) fn check_cell(
        &self,
        conversation: &ConversationKey,
        language: &Language,
        named: Option<SessionId>,
    ) -> Result<WaitingCell, Failure> {
        let registry = &self.0.registry;
        let there = || registry.of(conversation, language);
        if let Some(session) = named.map_or_else(there, |id| registry.get_of(&conversation.owner, id)) {
            self.0.check_use(&conversation.owner, &session)?;
        }
        let key = (conversation.clone(), language.clone());
        Ok(self.0.waiting.of(&key, CancellationToken::new))
    }

    /// Interrupts what runs, as a cell at a limit; ends the session when the time to react is over.
    pub(in crate::services) fn stop_cell(&self, link: &KernelLink) -> impl Future<Output = ()> + Send + use<> {
        let (inner, session) = (Arc::clone(&self.0), Arc::clone(&link.session));
        async move {
            interrupt_in_steps(&session.kernel).await;
            inner.end(&session, session.kernel.end_of_silence());
        }
    }

    /// The messages of a session's kernel from now on.
    ///
    /// # Errors
    /// Those of [`Sessions::get`].
    pub(in crate::services) fn link(&self, who: &Principal, id: SessionId) -> Result<KernelLink, Failure> {
        let session = self.0.find(who, id)?;
        let Kernel { subscribers, outgoing, reporter, .. } = &session.kernel;
        let (subscription, outgoing, reporter) = (subscribers.add(), outgoing.clone(), Arc::clone(reporter));
        Ok(KernelLink { session, subscription, outgoing, reporter })
    }

    /// How a session ended whose messages have. Then it is found no more.
    pub(in crate::services) async fn ended(&self, link: &KernelLink) -> SessionEnd {
        self.0.ended(&link.session).await
    }

    /// The session's next kernel when it is restarted; otherwise how it ended.
    pub(in crate::services) async fn next_link(&self, ended: &Arc<Session>) -> Result<KernelLink, SessionEnd> {
        let Session { id, conversation, .. } = &**ended;
        // Before the session is looked for: a restart that is over by then has opened it.
        self.0.registry.restarted(*id).await;
        if let Ok(link) = self.link(&conversation.owner, *id)
            && !link.session.kernel.is_ended()
        {
            // Those who are connected may not have what another token was given.
            let is_same = link.session.conversation.owner.token() == conversation.owner.token();
            return if is_same { Ok(link) } else { Err(SessionEnd::Restarted) };
        }
        Err(self.0.ended(ended).await)
    }

    /// The sessions of a caller that are being opened again: where each is.
    pub(in crate::services) fn restarting(&self, who: &Principal) -> Vec<(SessionId, ConversationKey, Language)> {
        let registry = &self.0.registry;
        let located = |id| registry.ended(who, id).map(|((conversation, language), _)| (id, conversation, language));
        registry.restarting().into_iter().filter_map(located).collect()
    }
}

impl Inner {
    /// A session that this caller may have code executed in.
    pub(super) fn find_to_use(&self, who: &Principal, id: SessionId) -> Result<Arc<Session>, Failure> {
        let session = self.find(who, id)?;
        self.check_use(who, &session)?;
        Ok(session)
    }

    /// Whether the token of a caller may still use a session, and the one that opened it is valid. What a token opened
    /// ends with it; a session that was being opened then ends here.
    pub(super) fn check_tokens(&self, who: &Principal, session: &Arc<Session>) -> Result<(), Failure> {
        let tokens = &self.parts.tokens;
        if tokens.check(&session.conversation.owner, &session.language).is_err() {
            self.end(session, SessionEnd::Closed);
        }
        tokens.check(who, &session.language)?;
        self.find(who, session.id).map(drop)
    }

    pub(super) fn check_use(&self, who: &Principal, session: &Session) -> Result<(), Failure> {
        self.check_network(who, &session.conversation.owner, &session.language, session.access.as_ref())
    }

    fn check_network(
        &self,
        who: &Principal,
        opener: &Principal,
        language: &Language,
        given: Option<&Access>,
    ) -> Result<(), Failure> {
        // What the token that opened it was given stays its own, also when policies have changed since.
        let is_covered = |given| self.parts.network.covers(who, language, given, opener);
        if who.token() == opener.token() || given.is_none_or(is_covered) {
            return Ok(());
        }
        let why = "The open session has more of the network than this token: open a session of your own in another \
                   conversation, or close this one first.";
        Err(Failure::new(Code::InsufficientScope, why))
    }
}
