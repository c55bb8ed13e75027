//! The check where the sandboxes of one runner differ from those of another, as pods of different templates do. Each
//! image has a result of its own, so a runner that changes, or that does not pass, leaves the others as they are.
//!
//! A refused start says nothing about isolation and may succeed later, so it is tried again. A check with findings is
//! repeated too: the operator may correct the cluster without changing a template.

use std::sync::Arc;

use tokio::time::sleep;

use super::{
    Isolation, IsolationCheck, PAUSE_MAX, PAUSE_MIN, log,
    programs::{self, CheckProgram},
};
use crate::{
    domain::{
        error::{Code, Failure},
        id::Language,
    },
    ports::runner::Runner,
};

impl IsolationCheck {
    /// Checks each runner, and again those that have changed or have not passed. Never ends by itself.
    pub(super) async fn check_each(&self) {
        let mut changes = self.catalog.changes();
        let mut pause = PAUSE_MIN;
        loop {
            let runners: Arc<[Runner]> = Arc::clone(&changes.borrow_and_update());
            self.state.keep(&runners);
            for runner in runners.iter() {
                if !self.state.permits(&runner.image) {
                    self.check_one(runner).await;
                }
            }
            // Until the new runners were checked too, the last result of all stays.
            if !changes.has_changed().unwrap_or_default() {
                self.state.conclude();
            }
            tokio::select! {
                () = sleep(pause) => pause = (pause * 2).min(PAUSE_MAX),
                _ = changes.changed() => pause = PAUSE_MIN,
            }
        }
    }

    async fn check_one(&self, runner: &Runner) {
        let result = self.result_of(runner).await;
        // The program may have run in a sandbox of the image that has replaced this one.
        if self.catalog.find(&runner.language).is_none_or(|now| now.image != runner.image) {
            return;
        }
        if self.state.set_of(runner, &result) {
            log(&result, Some(&runner.language));
        }
    }

    async fn result_of(&self, runner: &Runner) -> Isolation {
        let targets = self.engine.forbidden_addresses();
        let Some(CheckProgram { text, by_process_1 }) = programs::of_runner(runner, &targets) else {
            return Isolation::NoProgram(no_program(&runner.language));
        };
        let ran = self.programs.run_to_end(&runner.language, text).await;
        if by_process_1 && !is_by_process_1(&ran) {
            return Isolation::NoProgram(old_process_1(&runner.language));
        }
        match ran {
            Ok(report) => match self.verdict(&report) {
                Ok(notes) => Isolation::Verified { notes, rejected: Vec::new() },
                Err(why) => Isolation::Violated(why),
            },
            // The sandbox was there and its program failed, such as at writing to /data.
            Err(failure) if failure.code == Code::RunnerFailed => {
                Isolation::Violated(format!("its sandbox could not be checked, the last failure was {failure}"))
            }
            Err(failure) => Isolation::Pending { why: Some(failure.to_string()) },
        }
    }
}

/// Whether process 1 made the check, or nothing has run. An older one hands the program to the interpreter, which takes
/// it for a comment or fails at it.
pub(super) fn is_by_process_1(ran: &Result<String, Failure>) -> bool {
    match ran {
        Ok(report) => report.starts_with("== "),
        Err(failure) => failure.code != Code::RunnerFailed,
    }
}

fn no_program(language: &Language) -> String {
    format!(
        "The isolation check has no program for {language}, whose sandboxes may differ from those of other languages, \
         so no program of it is run: make its image speak protocol 1 or 2 (sandbox.protocol), whose process 1 makes \
         the check, or, if it runs bash, sh, python, javascript or typescript, name one of them in sandbox.aliases; \
         otherwise use another engine for it, such as Docker."
    )
}

pub(super) fn old_process_1(language: &Language) -> String {
    format!(
        "The isolation check of {language} printed no report, so no program of it is run: build its image again, whose \
         process 1 (sandbox-init) is older than the check that it has to make."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_that_an_interpreter_was_given_is_not_by_process_1() {
        let failed = |code| Err(Failure::new(code, "x"));
        for ran in [Ok("== variables\n".to_owned()), failed(Code::QueueTimeout)] {
            assert!(is_by_process_1(&ran), "{ran:?}");
        }
        for ran in [Ok(String::new()), failed(Code::RunnerFailed)] {
            assert!(!is_by_process_1(&ran), "{ran:?}");
        }
    }
}
