//! Runs that are begun, waited for, come back to and stopped.
//!
//! A call waits for the end of its run, at most for the time that it asked for; then the run goes on, and the answer
//! says how to come back. What becomes of a run whose call is given up, the policy decides: see
//! [`super::cancellation`].

use std::time::Duration;

use rmcp::{
    RoleServer,
    model::{CallToolResult, JsonObject},
    service::RequestContext,
};

use super::{Caller, McpParts, cancellation::Call, content, picture, progress::Progress};
use crate::{
    api::schema::{
        arguments::{CancelRun, GetRun, RunCode, Wait},
        parse::{Source, parse},
        report::RunReport,
    },
    domain::{error::Failure, id::RunId},
    services::{
        execution::RunRequest,
        runs::{RunState, RunView},
    },
};

/// How long a program that is being stopped is waited for: longer than an engine takes that works.
const STOP_WAIT: Duration = Duration::from_secs(15);

/// The call without its arguments.
pub(super) type Asked<'a> = &'a RequestContext<RoleServer>;

impl McpParts {
    pub(super) async fn run_code(
        &self,
        caller: &Caller,
        arguments: JsonObject,
        call: &Call,
        asked: Asked<'_>,
    ) -> Result<CallToolResult, Failure> {
        let RunCode { conversation, language, code, wait_seconds, detach } = parse(arguments, Source::Json)?;
        let request =
            RunRequest { within: caller.trace, ..RunRequest::new(caller.key(conversation), language, code.0) };
        let policy = self.runs.policy(detach);
        let run = self.runs.create(request, policy)?;
        let view = tokio::select! {
            view = self.watch(caller, run.id(), 0, wait_seconds, asked) => view?,
            // rmcp does not drop a call that is given up, so it is waited for until the program is dead.
            () = call.ended(policy) => self.stop(caller, run.id()).await?,
        };
        if view.state != RunState::Finished {
            // The answer says where to find the end.
            run.detach();
        }
        self.answer(caller, &view, 0).await
    }

    pub(super) async fn get_run(
        &self,
        caller: &Caller,
        arguments: JsonObject,
        call: &Call,
        asked: Asked<'_>,
    ) -> Result<CallToolResult, Failure> {
        let GetRun { run, after_event, wait_seconds } = parse(arguments, Source::Json)?;
        let after_event = after_event.unwrap_or(0);
        let view = tokio::select! {
            view = self.watch(caller, run, after_event, wait_seconds, asked) => view?,
            // Giving up the call does not stop the run.
            () = call.left() => self.runs.get(&caller.principal, run)?,
        };
        self.answer(caller, &view, after_event).await
    }

    pub(super) async fn cancel_run(&self, caller: &Caller, arguments: JsonObject) -> Result<CallToolResult, Failure> {
        let CancelRun { run } = parse(arguments, Source::Json)?;
        let view = self.stop(caller, run).await?;
        let mut result = self.answer(caller, &view, 0).await?;
        // The program did not succeed, but the cancellation did.
        result.is_error = Some(false);
        Ok(result)
    }

    async fn stop(&self, caller: &Caller, run: RunId) -> Result<RunView, Failure> {
        self.runs.cancel(&caller.principal, run)?;
        self.runs.wait(&caller.principal, run, STOP_WAIT).await
    }

    /// Waits for the end and reports progress meanwhile.
    async fn watch(
        &self,
        caller: &Caller,
        run: RunId,
        after_event: u64,
        wait: Option<Wait>,
        asked: Asked<'_>,
    ) -> Result<RunView, Failure> {
        let events = self.runs.events(&caller.principal, run, after_event.saturating_add(1))?;
        let mut progress = Progress::of(asked, events);
        let over = self.runs.wait(&caller.principal, run, wait.map_or(self.options.wait_default, |wait| wait.0));
        let mut over = std::pin::pin!(over);
        loop {
            tokio::select! {
                biased;
                view = &mut over => return view,
                () = progress.notify() => {}
            }
        }
    }

    async fn answer(&self, caller: &Caller, view: &RunView, after_event: u64) -> Result<CallToolResult, Failure> {
        match &view.result {
            Some(Ok(report)) => {
                let pictures = picture::of_run(&self.files, &self.options, report).await;
                Ok(content::run(&RunReport::finished(report, view.newest), pictures))
            }
            Some(Err(failure)) => Err(failure.clone()),
            None => {
                let output = self.runs.output_until(&caller.principal, view.run, after_event, view.newest)?;
                Ok(content::going_on(&RunReport::so_far(view, output), view, caller))
            }
        }
    }
}
