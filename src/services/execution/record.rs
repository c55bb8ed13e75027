//! What is kept of a run's way for those who watch the service: when each stage was over, and the facts at the end.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{Report, one::OneRun};
use crate::{
    domain::error::Failure,
    ports::observer::{FileFact, RunFacts, Stages},
    services::files::{Change, FileEntry},
};

/// A stage that is over.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stage {
    Queue,
    Start { stood_by: bool },
    Program,
    Collect,
}

/// Measures the stages of one run, each from the end of the one before.
#[derive(Debug)]
pub(super) struct Stopwatch {
    begun: Instant,
    begun_unix_s: i64,
    laps: Mutex<(Instant, Stages)>,
}

impl Stopwatch {
    pub(super) fn start(begun_unix_s: i64) -> Self {
        let begun = Instant::now();
        Self { begun, begun_unix_s, laps: Mutex::new((begun, Stages::default())) }
    }

    /// A stage is over now.
    pub(super) fn over(&self, stage: Stage) {
        let now = Instant::now();
        let mut laps = self.laps.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, stages) = &mut *laps;
        let took: Option<Duration> = Some(now - *last);
        *last = now;
        match stage {
            Stage::Queue => stages.queue = took,
            Stage::Start { stood_by } => (stages.start, stages.stood_by) = (took, stood_by),
            Stage::Program => stages.program = took,
            Stage::Collect => stages.collect = took,
        }
    }

    fn stages(&self) -> Stages {
        let laps = self.laps.lock().unwrap_or_else(PoisonError::into_inner);
        Stages { total: self.begun.elapsed(), ..laps.1 }
    }
}

impl OneRun {
    /// Tells those who watch what became of the run.
    pub(super) fn tell(&self, end: Result<&Report, &Failure>) {
        let parts = &self.inner.parts;
        let listed = end.ok().map(|report| &report.files);
        let changed = listed.into_iter().flat_map(|list| &list.files).filter(|file| file.change != Change::Unchanged);
        parts.observer.run_over(&RunFacts {
            run: self.id,
            trace: self.trace,
            principal: self.request.conversation.owner.name(),
            conversation: &self.request.conversation,
            language: &self.runner.language,
            image: &self.runner.image.0,
            program: &self.request.program,
            args: self.request.args.len(),
            stdin_bytes: self.request.stdin.len() as u64,
            limits: &self.limits,
            begun_unix_s: self.watch.begun_unix_s,
            ended_unix_s: parts.clock.unix_s(),
            stages: self.watch.stages(),
            end: end.map(|report| &report.outcome),
            files: changed.map(fact).collect(),
            files_truncated: listed.is_some_and(|list| list.truncated),
        });
    }
}

fn fact(file: &FileEntry) -> FileFact<'_> {
    FileFact { path: &file.path, size: file.size, change: file.change.word() }
}
