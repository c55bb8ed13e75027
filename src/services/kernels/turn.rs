//! A kernel's turn in its conversation: none, awaited or held.

use std::{
    future::{Future, pending},
    pin::Pin,
    sync::Arc,
};

use crate::{
    domain::{ConversationKey, DiskLimit, Ended, Failure, Language, Principal},
    services::{
        runs::{ConversationTurn, Runs},
        sessions::{Busy, Session},
    },
};

/// A turn, and the session that is occupied for it.
type NewTurn = Result<(Box<ConversationTurn>, Busy), Failure>;

#[derive(Default)]
pub(super) enum TurnState {
    #[default]
    None,
    Awaited(Pin<Box<dyn Future<Output = NewTurn> + Send>>),
    Held {
        turn: Box<ConversationTurn>,
        busy: Busy,
        watch: Watch,
    },
}

/// What may stop the cells of a turn that is held.
pub(super) enum Watch {
    /// The conversation's files and the turn's token are watched.
    Watched(Pin<Box<dyn Future<Output = StopReason> + Send>>),
    /// Its stop was reported to clients: `stop` interrupts the cell of this request, and at its end has ended the
    /// session.
    Stopping { request: String, stop: Pin<Box<dyn Future<Output = ()> + Send>> },
    /// Its stop was reported to clients, and no cell runs any more.
    Reported,
}

/// Why the cells of a turn are stopped.
pub(super) struct StopReason {
    /// How a cell ended that it stopped.
    pub(super) ended: Ended,
    pub(super) sentence: String,
}

pub(super) enum TurnChange {
    Came(NewTurn),
    Stopped(StopReason),
}

impl TurnState {
    /// Waits for a turn of this caller, and until the session has the files of its conversation.
    pub(super) fn awaited(runs: Runs, session: Arc<Session>, who: &Principal) -> Self {
        let conversation = ConversationKey::new(who.clone(), session.conversation.id.clone());
        Self::Awaited(Box::pin(async move {
            let turn = runs.turn(&conversation, &session.language).await?;
            runs.sessions().check_use(&conversation.owner, session.id)?;
            let busy = runs.sessions().carry_in(&session).await?;
            Ok((Box::new(turn), busy))
        }))
    }

    /// A turn that has come.
    pub(super) fn held(turn: Box<ConversationTurn>, busy: Busy) -> Self {
        let watch = Watch::begin(&turn);
        Self::Held { turn, busy, watch }
    }

    /// Whether one is held, of the token that this caller came by.
    pub(super) fn is_of(&self, who: &Principal) -> bool {
        matches!(self, Self::Held { turn, .. } if turn.is_of(who))
    }

    /// Counts a cell that is passed on in the turn that is held.
    pub(super) fn begin_cell(&mut self, language: &Language) -> Result<(), Failure> {
        let Self::Held { turn, busy, .. } = self else { return Ok(()) };
        turn.begin_cell(language).inspect(|()| busy.begin_cell())
    }

    /// Ends when the files of a held one are measured; the limit that they exceed, if it was not reported before. The
    /// next cell of its token may begin meanwhile.
    pub(super) fn finish(mut self) -> impl Future<Output = Option<DiskLimit>> + Send {
        if let Self::Held { turn, .. } = &mut self {
            turn.end_code();
        }
        async move {
            let Self::Held { turn, watch, .. } = &mut self else { return None };
            turn.exceeded().await.filter(|_| matches!(watch, Watch::Watched(_)))
        }
    }

    /// Waits for what changes it.
    pub(super) async fn change(&mut self) -> TurnChange {
        match self {
            Self::None => {}
            Self::Awaited(turn) => return TurnChange::Came(turn.await),
            Self::Held { watch, .. } => match watch {
                Watch::Watched(reason) => return TurnChange::Stopped(reason.await),
                Watch::Stopping { stop, .. } => {
                    stop.as_mut().await;
                    // The kernel is about to end.
                    *stop = Box::pin(pending());
                }
                Watch::Reported => {}
            },
        }
        pending().await
    }
}

impl Watch {
    pub(super) fn begin(turn: &ConversationTurn) -> Self {
        let (breach, ended) = (turn.breach(), turn.token_ended());
        Self::Watched(Box::pin(async move {
            let (ended, sentence) = tokio::select! {
                limit = breach => (Ended::DiskLimit(limit), limit.sentence()),
                () = ended => {
                    (Ended::Cancelled, "The token that this cell came by was revoked or has expired.".to_owned())
                }
            };
            StopReason { ended, sentence }
        }))
    }
}
