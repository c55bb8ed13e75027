//! A kernel's turn in its conversation: none, awaited or held.

use std::{
    future::{Future, pending},
    pin::Pin,
};

use crate::{
    domain::{error::Failure, outcome::DiskLimit},
    services::{runs::Turn, sessions::Busy},
};

#[derive(Default)]
pub(super) enum TurnState {
    #[default]
    None,
    Awaited(Pin<Box<dyn Future<Output = Result<Box<Turn>, Failure>> + Send>>),
    Held {
        turn: Box<Turn>,
        _busy: Busy,
        breach: Pin<Box<dyn Future<Output = DiskLimit> + Send>>,
    },
}

pub(super) enum TurnChange {
    Came(Result<Box<Turn>, Failure>),
    Breached(DiskLimit),
}

impl TurnState {
    /// Waits for what changes it.
    pub(super) async fn change(&mut self) -> TurnChange {
        match self {
            Self::None => pending().await,
            Self::Awaited(turn) => TurnChange::Came(turn.await),
            Self::Held { breach, .. } => TurnChange::Breached(breach.await),
        }
    }
}
