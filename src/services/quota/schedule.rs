//! When the tree of a conversation is walked: after a pause that grows with the duration of a walk, and after a shorter
//! one while the disk loses space quickly.

use std::time::Duration;

use tokio::{task::JoinError, time::Instant};

use super::watch::Look;
use crate::{domain::outcome::DiskLimit, ports::storage::StorageError};

/// The longest pause while the disk loses space quickly.
const HASTY_MAX: Duration = Duration::from_secs(2);

/// The pauses between two walks.
#[derive(Debug)]
pub(super) struct Pace {
    /// A pause is this many times the duration of the walk, within these bounds.
    pub factor: u32,
    pub pause_min: Duration,
    pub pause_max: Duration,
    /// As `factor`, while the disk loses space quickly.
    pub hasty_factor: u32,
}

pub(super) struct Schedule {
    pace: &'static Pace,
    /// When the next walk is due.
    pub(super) due: Instant,
    /// When the next walk may begin while the disk loses space quickly.
    pub(super) soonest: Instant,
    /// Walks in a row that met a closed folder.
    closed: u32,
}

impl Schedule {
    pub(super) fn new(pace: &'static Pace, first: Instant) -> Self {
        Self { pace, due: first, soonest: first, closed: 0 }
    }

    pub(super) fn is_due(&self, is_urgent: bool) -> bool {
        Instant::now() >= if is_urgent { self.soonest } else { self.due }
    }

    /// Notes the end of a walk. Without a result to judge, the error says what to stop a program for, if anything.
    pub(super) fn walked(
        &mut self,
        begun: Instant,
        end: &Result<Result<Look, StorageError>, JoinError>,
    ) -> Result<Look, Option<DiskLimit>> {
        let (now, took) = (Instant::now(), begun.elapsed());
        let Pace { factor, pause_min, pause_max, hasty_factor } = *self.pace;
        self.due = now + (took * factor).clamp(pause_min, pause_max);
        self.soonest = now + (took * hasty_factor).min(HASTY_MAX);
        match end {
            Ok(Ok(look)) => {
                self.closed = 0;
                Ok(*look)
            }
            // A program that is just closing a folder is not yet stopped for it.
            Ok(Err(StorageError::Denied { .. })) => {
                self.closed += 1;
                Err((self.closed >= 2).then_some(DiskLimit::Closed))
            }
            // It shows no growth, so it stops nothing by itself.
            _ => Err(None),
        }
    }
}
