//! The turn of a conversation for code that is not a run: code that a Jupyter client sends to a session's kernel.
//!
//! It has a run's admission, place in the queue and slot, its conversation's disk limit, and its line in the audit log.
//! A turn is of one token: that of the client whose code it is for.

use std::sync::Arc;

use tracing::info;

use super::{Inner, Runs, auxiliary::token_ended};
use crate::{
    domain::{
        error::Failure,
        id::{Language, RunId},
        outcome::{DiskLimit, Ended, Figures, Outcome},
        owner::{ConversationKey, Principal},
        text,
        trace::TraceContext,
    },
    ports::{
        observer::{BeginFacts, ProgramFacts, RunFacts, Stages},
        storage::Usage,
    },
    services::{admission::Permit, tokens::Started},
};

/// While it lives, no run and no other cell of the conversation starts.
pub(in crate::services) struct ConversationTurn {
    service: Arc<Inner>,
    conversation: ConversationKey,
    _permit: Permit,
    by: Option<Started>,
    /// Whether a cell has begun: the first one was counted with the turn.
    has_begun: bool,
    is_measured: bool,
}

impl Runs {
    /// Waits for a turn of the conversation, for the token of its key.
    ///
    /// # Errors
    /// Those of [`Runs::begin`]; [`Code::QueueTimeout`](crate::domain::error::Code::QueueTimeout), and a conversation
    /// or disk without room.
    pub(in crate::services) async fn turn(
        &self,
        conversation: &ConversationKey,
        language: &Language,
    ) -> Result<ConversationTurn, Failure> {
        let service = Arc::clone(&self.0);
        let parts = &service.parts;
        let entered = service.check_running().and_then(|()| parts.peers.check(conversation));
        let entered = entered.and_then(|()| service.admission.enter(conversation, 0));
        let entered = entered.and_then(|ticket| Ok((ticket, parts.tokens.begin(&conversation.owner, language)?)));
        let (ticket, by) = entered.inspect_err(|failure| parts.observer.refused(failure.code))?;
        let permit = ticket.turn().await?;
        parts.files.check_capacity(conversation, Usage::default()).await?;
        service.prepare(conversation).await?;
        Ok(ConversationTurn {
            service: Arc::clone(&service),
            conversation: conversation.clone(),
            _permit: permit,
            by,
            has_begun: false,
            is_measured: false,
        })
    }
}

impl ConversationTurn {
    /// Whether it is of the token that a caller came by.
    pub(in crate::services) fn is_of(&self, who: &Principal) -> bool {
        self.conversation.owner.token() == who.token()
    }

    /// Counts a cell of the turn's token that is about to be handed over.
    ///
    /// # Errors
    /// The token was revoked since, or one of its limits is reached.
    pub(in crate::services) fn begin_cell(&mut self, language: &Language) -> Result<(), Failure> {
        let (parts, who) = (&self.service.parts, &self.conversation.owner);
        let begun = if self.has_begun {
            parts.tokens.begin_within(who, language).map(drop)
        } else {
            parts.tokens.check(who, language)
        };
        self.has_begun |= begun.is_ok();
        begun.inspect_err(|failure| parts.observer.refused(failure.code))
    }

    /// Waits until the token that the turn is of is revoked or has expired.
    pub(in crate::services) fn token_ended(&self) -> impl Future<Output = ()> + Send + use<> {
        token_ended(self.by.as_ref())
    }

    /// Waits until the conversation's files exceed a limit.
    pub(in crate::services) fn breach(&self) -> impl Future<Output = DiskLimit> + Send + use<> {
        Arc::clone(self.service.parts.files.quota()).breach(self.conversation.clone())
    }

    /// Its code has ended: it is none of those any more that its token has at once.
    pub(in crate::services) fn end_code(&mut self) {
        self.by = None;
    }

    /// The limit that the conversation's files exceed now that its code has ended.
    pub(in crate::services) async fn exceeded(&mut self) -> Option<DiskLimit> {
        self.is_measured = true;
        self.service.parts.files.quota().exceeds_now(&self.conversation).await
    }

    /// Reports a cell to the observers, and counts what it used for the token that it came by.
    pub(in crate::services) fn report(
        &self,
        language: &Language,
        code: &str,
        figures: Figures,
        ended: Result<Ended, Failure>,
        oom_killed: bool,
    ) {
        if let Some(by) = &self.by {
            by.count(&figures);
        }
        let took = figures.wall;
        let parts = &self.service.parts;
        let Some(runner) = parts.catalog.find(language) else { return };
        let (limits, run) = (&parts.sandboxes.limits, RunId::new());
        let outcome = ended.map(|ended| {
            let oom_killed = oom_killed || ended == Ended::OutOfMemory;
            Outcome { ended, oom_killed, limits: *limits, figures }
        });
        let ended_unix_s = parts.sandboxes.clock.unix_s();
        let conversation = &self.conversation;
        let how = outcome.as_ref().map(|outcome| outcome.ended);
        info!(%run, %conversation, %language, ?how, wall_ms = text::ms(took), "a notebook's cell ended");
        let sha256 = &text::sha256(code.as_bytes());
        let program = ProgramFacts { bytes: code.as_bytes(), sha256 };
        parts.observer.run_over(&RunFacts {
            begin: BeginFacts { run, conversation, is_cell: true, language, image: &runner.image.0, program },
            trace: TraceContext::of_run(run, None),
            args: 0,
            stdin_bytes: 0,
            limits,
            begun_unix_s: ended_unix_s.saturating_sub(i64::try_from(took.as_secs()).unwrap_or(i64::MAX)),
            ended_unix_s,
            stages: Stages { program: Some(took), total: took, ..Stages::default() },
            end: outcome.as_ref(),
            files: Vec::new(),
            files_truncated: false,
        });
    }
}

impl Drop for ConversationTurn {
    fn drop(&mut self) {
        // What the code left is not listed, so it is measured before the next one if it was not yet.
        if !self.is_measured {
            self.service.parts.files.quota().measured(&self.conversation, None);
        }
    }
}
