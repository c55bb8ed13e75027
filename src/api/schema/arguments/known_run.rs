//! What a client sends to ask for a run that it knows, or to stop it.

use std::time::Duration;

use serde_json::{Map, Value};

use super::Arguments;
use crate::domain::{error::Failure, id::RunId};

/// Arguments of `get_run`.
pub const GET_RUN: &[&str] = &["runId", "afterEvent", "waitSeconds"];
/// Arguments of `cancel_run`.
pub const CANCEL_RUN: &[&str] = &["runId"];

/// Arguments of `get_run`.
#[derive(Debug)]
pub struct GetRun {
    /// Which.
    pub run: RunId,
    /// Only what was printed after this event, while it goes on.
    pub after_event: u64,
    /// How long to wait for the end; the server's own time where it is not said.
    pub wait: Option<Duration>,
}

/// Arguments of `cancel_run`.
#[derive(Debug)]
pub struct CancelRun {
    /// Which.
    pub run: RunId,
}

impl GetRun {
    /// Reads them.
    ///
    /// # Errors
    /// [`crate::domain::error::Code::InvalidArgument`], naming the argument.
    pub fn parse(arguments: Map<String, Value>) -> Result<Self, Failure> {
        let mut arguments = Arguments::new(arguments, GET_RUN)?;
        Ok(Self {
            run: run(&mut arguments)?,
            after_event: arguments.whole_number("afterEvent")?.unwrap_or(0),
            wait: arguments.wait("waitSeconds")?,
        })
    }
}

impl CancelRun {
    /// Reads them.
    ///
    /// # Errors
    /// [`crate::domain::error::Code::InvalidArgument`], naming the argument.
    pub fn parse(arguments: Map<String, Value>) -> Result<Self, Failure> {
        Ok(Self { run: run(&mut Arguments::new(arguments, CANCEL_RUN)?)? })
    }
}

fn run(arguments: &mut Arguments) -> Result<RunId, Failure> {
    let text = arguments.required("runId", "the runId of a result, such as run-0a1b…")?;
    text.parse().map_err(|why| Failure::argument("runId", why))
}
