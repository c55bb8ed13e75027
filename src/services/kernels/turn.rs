//! A kernel's turn in its conversation: none, awaited or held.

use std::{
    future::{Future, pending},
    pin::Pin,
};

use crate::{
    domain::{
        error::Failure,
        id::{Language, SessionId},
        outcome::DiskLimit,
        owner::ConversationKey,
    },
    services::{
        runs::{ConversationTurn, Runs},
        sessions::{Busy, Sessions},
    },
};

#[derive(Default)]
pub(super) enum TurnState {
    #[default]
    None,
    Awaited(Pin<Box<dyn Future<Output = Result<Box<ConversationTurn>, Failure>> + Send>>),
    Held {
        turn: Box<ConversationTurn>,
        _busy: Busy,
        files: FilesState,
    },
}

/// The conversation's files while a turn is held.
pub(super) enum FilesState {
    /// They are watched, until they exceed a limit.
    Watched(Pin<Box<dyn Future<Output = DiskLimit> + Send>>),
    /// They exceeded one, and clients were told: the cell with this id is interrupted, until its time to react is over.
    Stopping { cell: String, time: Pin<Box<dyn Future<Output = ()> + Send>> },
    /// They exceeded one, clients were told, and no cell runs any more.
    Reported,
}

pub(super) enum TurnChange {
    Came(Result<Box<ConversationTurn>, Failure>),
    Breached(DiskLimit),
    /// The time that a cell had to react to its interrupt is over.
    TimeUp,
}

impl TurnState {
    /// Waits for a turn, and until the session has the files of its conversation.
    pub(super) fn awaited(runs: Runs, sessions: Sessions, place: (SessionId, ConversationKey, Language)) -> Self {
        let (session, conversation, language) = place;
        Self::Awaited(Box::pin(async move {
            let turn = runs.turn(&conversation, &language).await?;
            sessions.carry_in(&conversation.owner, session).await?;
            Ok(Box::new(turn))
        }))
    }

    /// A turn that has come.
    pub(super) fn held(turn: Box<ConversationTurn>, busy: Busy) -> Self {
        let files = FilesState::watched(&turn);
        Self::Held { turn, _busy: busy, files }
    }

    /// Ends when the files of a held one are measured; the limit that they exceed, if it was not told before.
    pub(super) async fn over(mut self) -> Option<DiskLimit> {
        let Self::Held { turn, files, .. } = &mut self else { return None };
        turn.exceeded().await.filter(|_| matches!(files, FilesState::Watched(_)))
    }

    /// Waits for what changes it.
    pub(super) async fn change(&mut self) -> TurnChange {
        match self {
            Self::None | Self::Held { files: FilesState::Reported, .. } => pending().await,
            Self::Awaited(turn) => TurnChange::Came(turn.await),
            Self::Held { files: FilesState::Watched(breach), .. } => TurnChange::Breached(breach.await),
            Self::Held { files: FilesState::Stopping { time, .. }, .. } => {
                time.await;
                TurnChange::TimeUp
            }
        }
    }
}

impl FilesState {
    pub(super) fn watched(turn: &ConversationTurn) -> Self {
        Self::Watched(Box::pin(turn.breach()))
    }
}
