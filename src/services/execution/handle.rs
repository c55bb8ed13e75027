//! A run in the hands of whoever asked for it: to wait for it, to follow it, to stop it.
//!
//! A handle owns nothing of the run: when the last one is dropped the run goes on.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    input::{self, Input},
    log::EventLog,
    report::Report,
};
use crate::{
    domain::{
        error::{Code, Failure},
        id::{Language, RunId},
    },
    services::admission::QueuePosition,
};

/// A run that was begun. Dropping it changes nothing for the run; a clone is the same run.
#[derive(Clone)]
pub struct Run {
    /// Which.
    pub id: RunId,
    /// The language's own name.
    pub language: Language,
    /// Where it is in the line, while it waits.
    pub position: QueuePosition,
    /// What happens to it.
    pub log: Arc<EventLog>,
    /// Where its program is sent input, if that was left open.
    pub(super) input: Option<Arc<Input>>,
    pub(super) cancel: CancellationToken,
    pub(super) report: watch::Receiver<Option<Result<Arc<Report>, Failure>>>,
}

/// Cancels the run when it is dropped, unless the run is over.
pub struct CancelOnDrop(CancellationToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Run {
    /// Waits for the end.
    ///
    /// # Errors
    /// Our own failures; a program that fails is a report.
    pub async fn finished(&mut self) -> Result<Arc<Report>, Failure> {
        match self.report.wait_for(Option::is_some).await {
            Ok(report) => report.clone().unwrap_or_else(|| Err(internal())),
            // The task ended without a word, which it never does.
            Err(_) => Err(internal()),
        }
    }

    /// What came of it, if it is over.
    pub fn result(&self) -> Option<Result<Arc<Report>, Failure>> {
        self.report.borrow().clone()
    }

    /// Sends the program a piece of its standard input, all of it or nothing; `last` says that no more comes. Before the
    /// program has started it is kept; while the program does not read, it waits, for a while. Answers once the piece is
    /// taken in, which does not say that the program has read it.
    ///
    /// # Errors
    /// [`Code::InputClosed`] when the run is over, its input is, or none was asked for; [`Code::InputFull`] when the
    /// program does not read; [`Code::TooLarge`] above [`super::INPUT_BYTES_MAX`].
    pub async fn send_input(&self, bytes: Bytes, last: bool) -> Result<(), Failure> {
        if self.report.borrow().is_some() {
            return Err(input::over());
        }
        let none = || input::closed("it was begun with a complete one; begin a run with `stdinOpen` to send it more");
        self.input.as_ref().ok_or_else(none)?.send(bytes, last).await
    }

    /// Whether its program can be sent input now.
    pub fn takes_input(&self) -> bool {
        self.report.borrow().is_none() && self.input.as_ref().is_some_and(|input| input.is_open())
    }

    /// Asks for the run to be stopped. `finished` tells when it is.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// The policy «when the caller goes away, stop the run», as a value.
    pub fn cancel_on_drop(&self) -> CancelOnDrop {
        CancelOnDrop(self.cancel.clone())
    }
}

/// What a client is told when the server itself failed.
pub(super) fn internal() -> Failure {
    Failure::new(Code::Internal, "The server failed while it ran the program: its log says why.")
}
