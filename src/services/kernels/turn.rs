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
        runs::{Runs, Turn},
        sessions::{Busy, Sessions},
    },
};

#[derive(Default)]
pub(super) enum TurnState {
    #[default]
    None,
    Awaited(Pin<Box<dyn Future<Output = Result<Box<Turn>, Failure>> + Send>>),
    Held {
        turn: Box<Turn>,
        _busy: Busy,
        /// `None` once a limit was exceeded, and the client was told.
        breach: Option<Pin<Box<dyn Future<Output = DiskLimit> + Send>>>,
    },
}

pub(super) enum TurnChange {
    Came(Result<Box<Turn>, Failure>),
    Breached(DiskLimit),
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

    /// Ends when the files of a held one are measured; the limit that they exceed, if it was not told before.
    pub(super) async fn over(mut self) -> Option<DiskLimit> {
        let Self::Held { turn, breach, .. } = &mut self else { return None };
        turn.exceeded().await.filter(|_| breach.is_some())
    }

    /// Waits for what changes it.
    pub(super) async fn change(&mut self) -> TurnChange {
        match self {
            Self::None | Self::Held { breach: None, .. } => pending().await,
            Self::Awaited(turn) => TurnChange::Came(turn.await),
            Self::Held { breach: Some(breach), .. } => TurnChange::Breached(breach.await),
        }
    }
}
