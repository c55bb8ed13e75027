//! A run as it is remembered, and as it is shown. What one sees is a copy of one moment.

use std::{sync::Arc, time::Duration};

use crate::{
    domain::{
        error::Failure,
        id::{Language, RunId},
        owner::ConversationKey,
    },
    services::execution::{Captured, Report, Run, so_far},
};

/// What is remembered of a run.
pub(in crate::services) struct Entry {
    pub(super) conversation: ConversationKey,
    pub(super) created_unix_s: i64,
    pub(super) run: Run,
}

/// Where a run is on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunState {
    /// It waits for its turn, or its sandbox is being started.
    Queued {
        /// How many wait from it on to the front, itself included; nothing when its turn has come.
        position: Option<u32>,
    },
    /// The program runs.
    Running,
    /// It is over.
    Finished,
}

impl RunState {
    /// One word for it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Queued { .. } => "queued",
            Self::Running => "running",
            Self::Finished => "finished",
        }
    }
}

/// A run as it is now.
#[derive(Debug, Clone)]
pub struct RunView {
    /// Which.
    pub run: RunId,
    /// Whose files are `/data`.
    pub conversation: ConversationKey,
    /// The language's own name.
    pub language: Language,
    /// Where it is on its way.
    pub state: RunState,
    /// When it was asked for, in seconds since the Unix epoch.
    pub created_unix_s: i64,
    /// When the program was handed over, counted from when it was asked for.
    pub started: Option<Duration>,
    /// How long the program has run so far, or took.
    pub wall: Duration,
    /// Whether its program can be sent input.
    pub takes_input: bool,
    /// What came of it, when it is over: a report, or a failure of ours.
    pub result: Option<Result<Arc<Report>, Failure>>,
    /// The number of the newest event.
    pub newest: u64,
}

/// A page of runs.
#[derive(Debug, Clone)]
pub struct RunPage {
    /// Newest first.
    pub runs: Vec<RunView>,
    /// Where the next page begins, when there is more.
    pub after: Option<RunId>,
}

impl Entry {
    pub(super) fn view(&self) -> RunView {
        let result = self.run.result();
        let facts = self.run.log.facts();
        let state = match (&result, facts.started_at) {
            (Some(_), _) => RunState::Finished,
            (None, Some(_)) => RunState::Running,
            (None, None) => RunState::Queued { position: self.run.position.now() },
        };
        let so_far = || facts.started_at.map(|at| facts.ended_at.unwrap_or(self.run.log.age()).saturating_sub(at));
        let wall = match &result {
            Some(Ok(report)) => report.outcome.figures.wall,
            _ => so_far().unwrap_or_default(),
        };
        RunView {
            run: self.run.id,
            conversation: self.conversation.clone(),
            language: self.run.language.clone(),
            state,
            created_unix_s: self.created_unix_s,
            started: facts.started_at,
            wall,
            takes_input: self.run.takes_input(),
            result,
            newest: facts.newest,
        }
    }

    pub(super) fn output(&self, after: u64) -> (Captured, Captured) {
        self.output_until(after, u64::MAX)
    }

    pub(super) fn output_until(&self, after: u64, last: u64) -> (Captured, Captured) {
        let mut events = self.run.log.since(after.saturating_add(1));
        events.retain(|event| event.number <= last);
        so_far(&events)
    }

    /// What it costs to remember this run, in bytes: an estimate from above for what is not text.
    pub(super) fn kept_bytes(&self) -> usize {
        const FILE_BYTES: usize = 1024;
        const ENTRY_BYTES: usize = 4096;
        let of_report = |report: Arc<Report>| {
            report.stdout.text.len() + report.stderr.text.len() + report.files.files.len() * FILE_BYTES
        };
        let report = self.run.result().and_then(Result::ok).map_or(0, of_report);
        ENTRY_BYTES + self.run.log.facts().kept_bytes + report
    }
}
