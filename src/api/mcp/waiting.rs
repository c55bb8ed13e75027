//! The tools that begin a run, wait for it, return to it and cancel it.
//!
//! A call waits for the end of its run, at most `waitSeconds`; then the run goes on, and the answer says how to return
//! to it. The policy in [`super::cancellation`] decides what happens to a run whose call is cancelled.

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
    domain::error::Failure,
    services::runs::{Run, RunRequest, RunState, RunView},
};

/// How long to wait for a cancelled program; a working engine takes less.
const STOP_WAIT: Duration = Duration::from_secs(15);

/// The call without its arguments.
pub(super) type ToolContext<'a> = &'a RequestContext<RoleServer>;

impl McpParts {
    pub(super) async fn run_code(
        &self,
        caller: &Caller,
        arguments: JsonObject,
        call: &Call,
        context: ToolContext<'_>,
    ) -> Result<CallToolResult, Failure> {
        let RunCode { conversation, language, code, wait_seconds, detach } = parse(arguments, Source::Json)?;
        let request = RunRequest::new(caller.key(conversation), language, code.0);
        let run = self.runs.begin(RunRequest { within: caller.trace, detach, ..request })?;
        let view = tokio::select! {
            view = self.watch(&run, 0, wait_seconds, context) => view,
            // rmcp does not drop a cancelled call, so the call waits until the program has ended.
            () = call.ended(run.is_detached()) => stop(&run).await,
        };
        let answer = self.answer(caller, &run, &view, 0).await;
        if view.state != RunState::Finished {
            // The client can return to the run, so its disconnecting must not cancel it.
            run.detach();
        }
        answer
    }

    pub(super) async fn get_run(
        &self,
        caller: &Caller,
        arguments: JsonObject,
        call: &Call,
        context: ToolContext<'_>,
    ) -> Result<CallToolResult, Failure> {
        let GetRun { run, after_event, wait_seconds } = parse(arguments, Source::Json)?;
        let after_event = after_event.unwrap_or(0);
        let run = self.runs.get(&caller.principal, run)?;
        let view = tokio::select! {
            view = self.watch(&run, after_event, wait_seconds, context) => view,
            // Cancelling the call does not stop the run.
            () = call.left() => run.view(),
        };
        self.answer(caller, &run, &view, after_event).await
    }

    pub(super) async fn cancel_run(&self, caller: &Caller, arguments: JsonObject) -> Result<CallToolResult, Failure> {
        let CancelRun { run } = parse(arguments, Source::Json)?;
        let run = self.runs.get(&caller.principal, run)?;
        let mut result = self.answer(caller, &run, &stop(&run).await, 0).await?;
        // The program did not succeed, but the cancellation did.
        result.is_error = Some(false);
        Ok(result)
    }

    /// Waits for the end and reports progress meanwhile.
    async fn watch(&self, run: &Run, after_event: u64, wait: Option<Wait>, context: ToolContext<'_>) -> RunView {
        let mut progress = Progress::of(context, run.events(after_event.saturating_add(1)));
        let over = run.wait(wait.map_or(self.options.wait_default, |wait| wait.0));
        let mut over = std::pin::pin!(over);
        loop {
            tokio::select! {
                biased;
                view = &mut over => return view,
                () = progress.notify() => {}
            }
        }
    }

    async fn answer(
        &self,
        caller: &Caller,
        run: &Run,
        view: &RunView,
        after_event: u64,
    ) -> Result<CallToolResult, Failure> {
        match &view.result {
            Some(Ok(report)) => {
                let pictures = picture::of_run(&self.files, &self.options, report).await;
                Ok(content::run(&RunReport::finished(report, view.newest), pictures))
            }
            Some(Err(failure)) => Err(failure.clone()),
            None => {
                let output = run.output(after_event, view.newest);
                Ok(content::going_on(&RunReport::so_far(view, output), view, caller))
            }
        }
    }
}

async fn stop(run: &Run) -> RunView {
    run.cancel();
    run.wait(STOP_WAIT).await
}
