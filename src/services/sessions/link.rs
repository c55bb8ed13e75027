//! The raw messages of a session's kernel, for the one service that relays them to clients.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{
    SessionEnd, SessionView, Sessions,
    cell::urge,
    kernel::own_message,
    message::{Channel, KernelMessage},
    queue::Following,
    registry::{Busy, Session},
};
use crate::{
    domain::{
        error::Failure,
        id::{Language, SessionId},
        outcome::Figures,
        owner::{ConversationKey, Principal},
    },
    services::network::ConnectionReporter,
};

/// A session's kernel, message by message. Its owner always reads: the kernel is waited for by its cells.
pub(in crate::services) struct KernelLink {
    session: Arc<Session>,
    following: Following,
}

impl KernelLink {
    /// The next message; nothing when the kernel has ended.
    pub(in crate::services) async fn next(&mut self) -> Option<KernelMessage> {
        self.following.next().await
    }

    /// Where messages for the kernel go.
    pub(in crate::services) fn outgoing(&self) -> mpsc::Sender<KernelMessage> {
        self.session.kernel.outgoing.clone()
    }

    /// A sentence for each host that was refused since the last time.
    pub(in crate::services) fn take_refusals(&self) -> Vec<String> {
        self.session.kernel.reporter().map(ConnectionReporter::end).unwrap_or_default()
    }

    /// Interrupts what runs, as a cell at a limit. Ends when the time to react is over.
    pub(in crate::services) fn interrupting(&self) -> impl Future<Output = ()> + Send + use<> {
        let session = Arc::clone(&self.session);
        async move { urge(&session.kernel).await }
    }

    /// Has the bridge say what was used.
    pub(in crate::services) fn ask_figures() -> KernelMessage {
        own_message("", Channel::Bridge, "figures", &json!({})).1
    }

    /// What a cell used, by what the bridge says.
    pub(in crate::services) fn figures(&self, said: &Value) -> Figures {
        self.session.figures(said)
    }

    pub(in crate::services) fn view(&self) -> SessionView {
        self.session.view()
    }

    pub(in crate::services) fn touch(&self) {
        self.session.touch();
    }

    /// Cells will run.
    pub(in crate::services) fn occupy(&self) -> Busy {
        self.session.occupy()
    }
}

impl Sessions {
    /// Ends the session of a cell that did not react to its interrupt.
    pub(in crate::services) fn kill(&self, link: &KernelLink) {
        self.0.end(&link.session, SessionEnd::Killed);
    }

    /// The messages of a session's kernel from now on.
    ///
    /// # Errors
    /// Those of [`Sessions::get`].
    pub(in crate::services) fn link(&self, who: &Principal, id: SessionId) -> Result<KernelLink, Failure> {
        let session = self.0.find(who, id)?;
        Ok(KernelLink { following: session.kernel.follow(), session })
    }

    /// How a session ended whose messages have. Then it is found no more.
    pub(in crate::services) async fn ended(&self, link: &KernelLink) -> SessionEnd {
        self.0.ended(&link.session).await
    }

    /// The session's next kernel when it is restarted; otherwise how it ended.
    pub(in crate::services) async fn next_link(&self, ended: &KernelLink) -> Result<KernelLink, SessionEnd> {
        let Session { id, conversation, .. } = &*ended.session;
        let mut restarts = self.0.registry.restarts();
        loop {
            // Before the session is looked for: a restart that is over by then has opened it.
            let is_restarting = self.0.registry.is_restarting(*id);
            if let Ok(link) = self.link(&conversation.owner, *id)
                && !link.session.kernel.is_ended()
            {
                // Those who are connected may not have what another token was given.
                let is_same = link.session.conversation.owner.token() == conversation.owner.token();
                return if is_same { Ok(link) } else { Err(SessionEnd::Restarted) };
            }
            if !is_restarting {
                return Err(self.ended(ended).await);
            }
            if restarts.changed().await.is_err() {
                return Err(SessionEnd::Lost);
            }
        }
    }

    /// The sessions of a caller that are being opened again: where each is.
    pub(in crate::services) fn restarting(&self, who: &Principal) -> Vec<(SessionId, ConversationKey, Language)> {
        let registry = &self.0.registry;
        let place = |id| registry.ended(who, id).map(|((conversation, language), _)| (id, conversation, language));
        registry.restarting().into_iter().filter_map(place).collect()
    }
}
