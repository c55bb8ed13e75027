//! Which tokens may execute code in an open session: the one that opened it, and others of its owner whose network
//! policies include all that its sandbox has.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{Inner, SessionEnd, Sessions, WaitingCell, registry::Session};
use crate::{
    domain::{
        error::{Code, Failure},
        id::{Language, SessionId},
        owner::{ConversationKey, Principal},
    },
    services::network::Access,
};

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
        let open = named.map_or_else(|| registry.of(conversation, language), |id| registry.get(id));
        let open = open.filter(|session| session.conversation.owner == conversation.owner);
        if let Some(session) = open {
            self.0.check_use(&conversation.owner, &session)?;
        }
        let place = (conversation.clone(), language.clone());
        Ok(self.0.waiting.of(&place, CancellationToken::new))
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
