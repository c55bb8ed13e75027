//! The tools that begin a run, wait for it, return to it and cancel it, and runs as tasks (SEP-2663): for a client that
//! declares that extension, a run that goes on when its call returns is a task, whose id is the run's.
//!
//! A call waits for the end of its run, at most `waitSeconds`; then the run goes on, and the answer says how to return
//! to it. The policy in [`Call`](super::caller::Call) decides what happens to a run whose call is cancelled.

use std::{sync::Arc, time::Duration};

use rmcp::{
    ErrorData,
    model::{
        CallToolResponse, CreateTaskResult, DetailedTask, ErrorCode, GetTaskResult, InputRequiredResult, Task,
        TaskPayload, TaskStatus, object,
    },
};
use serde_json::json;

use super::{
    Caller, McpParts,
    caller::{Context, ToolCall, ToolResponse, ToolResult},
    content::{self, RunAnswer},
    describe::ToolName,
    picture::{self, Pictures},
    progress::Progress,
    questions::{self, ClientAbilities, Questions},
};
use crate::{
    api::schema::{
        arguments::{CancelRun, GetRun, RunCell, RunCode, WAIT_S_MAX, Wait},
        run::RunReport,
    },
    domain::{Code, ConversationId, Ended, Failure, Limits, RunId, environment::check_args, text::rfc3339},
    ports::history::HistoryLine,
    services::{
        history,
        runs::{CapturedOutput, CellSession, Report, Run, RunHandle, RunRequest, RunState, RunView},
    },
};

/// How long to wait for a cancelled program; a working engine takes less.
const STOP_WAIT: Duration = Duration::from_secs(15);
/// How often a client is to ask for a task.
const POLL_MS: u64 = 1000;

/// Which part of a run an answer shows.
#[derive(Default)]
struct OutputPart {
    /// While it goes on: output after this event.
    after_event: u64,
    /// When it has ended: output from this byte on.
    offset: Option<u64>,
}

impl McpParts {
    pub(super) async fn run_code(&self, call: ToolCall<'_>, arguments: RunCode) -> ToolResponse {
        let RunCode { conversation_id, language, code, stdin, args, env, timeout_seconds, wait_seconds, detach } =
            arguments;
        let conversation = call.caller.key(conversation_id.unwrap_or_else(ConversationId::fresh));
        let args = args.unwrap_or_default();
        check_args(&args)?;
        let request = RunRequest {
            args,
            env: env.unwrap_or_default(),
            stdin: stdin.unwrap_or_default().into(),
            limits: limited_to(timeout_seconds)?,
            detach,
            ..RunRequest::new(conversation, language, code.0)
        };
        self.run_and_answer(call, request, wait_seconds).await
    }

    pub(super) async fn run_cell(&self, call: ToolCall<'_>, arguments: RunCell) -> ToolResponse {
        let RunCell { conversation_id, code, language, stdin, timeout_seconds, wait_seconds, detach } = arguments;
        let conversation = call.caller.key(conversation_id.unwrap_or_else(ConversationId::fresh));
        let request = RunRequest {
            session: Some(CellSession::Any),
            stdin: stdin.unwrap_or_default().into(),
            limits: limited_to(timeout_seconds)?,
            detach,
            ..RunRequest::new(conversation, language.unwrap_or_default(), code.0)
        };
        self.run_and_answer(call, request, wait_seconds).await
    }

    /// Begins a run, or returns to the one that a repeated call is about, and waits for its end, or until the call is
    /// given up or, where it `may_repeat`, answered with a question.
    async fn begin_and_wait(
        &self,
        ToolCall { caller, entry, context }: ToolCall<'_>,
        request: RunRequest,
        (wait, may_repeat): (Option<Wait>, bool),
    ) -> Result<(RunHandle, RunView, Option<InputRequiredResult>), Failure> {
        let asks = ClientAbilities::of(caller, &request, &self.tools, context);
        let asks = if asks.by_repeating && !may_repeat { ClientAbilities::default() } else { asks };
        let stdin_open = request.stdin_open || asks.input;
        let (run, first) = match &entry.repeated {
            Some(repeated) => {
                let run = self.runs.hold(&caller.principal, repeated.run, request.detach)?;
                self.questions.remove(repeated.run);
                let first = repeated.deliver(&run, &asks).await;
                (run, first)
            }
            None => (self.runs.begin(RunRequest { within: caller.trace, stdin_open, ..request })?, 1),
        };
        let mut asking = Questions::of(&run, first);
        let mut question = None;
        let view = tokio::select! {
            view = self.watch(&run, 0, wait, context) => view,
            // rmcp does not drop a cancelled call, so the call waits until the program has ended.
            () = entry.stopped(run.is_detached()) => stop(&run).await,
            (event, asked) = asking.serve(&run, &asks, context), if asks.any() => {
                question = questions::required(run.id(), event, &asked);
                run.view()
            }
        };
        if asks.any() && question.is_none() {
            asking.end(&run, &asks).await;
        }
        Ok((run, view, question))
    }

    /// A run from its beginning to its end.
    pub(super) async fn run_to_end(&self, call: ToolCall<'_>, request: RunRequest) -> Result<Arc<Report>, Failure> {
        let wait = Wait(Duration::from_secs(WAIT_S_MAX));
        let (run, ..) = self.begin_and_wait(call, request, (Some(wait), false)).await?;
        run.finished().await
    }

    async fn run_and_answer(&self, call: ToolCall<'_>, request: RunRequest, wait: Option<Wait>) -> ToolResponse {
        let (run, view, question) = self.begin_and_wait(call, request, (wait, true)).await?;
        if let Some(question) = question {
            self.questions.add(&self.runs, &call.caller.principal, run.id());
            // The client repeats the call, so the end of this one must not cancel the run.
            run.detach();
            return Ok(question.into());
        }
        let knows_tasks = || call.context.client_capabilities().is_some_and(|client| client.supports_tasks());
        if view.state != RunState::Finished && knows_tasks() {
            run.detach();
            return Ok(CallToolResponse::Task(CreateTaskResult::new(task_of(&view))));
        }
        let answer = self.answer_or_failure(call.caller, &run, &view, OutputPart::default()).await;
        if view.state != RunState::Finished {
            // The client can return to the run, so its disconnecting must not cancel it.
            run.detach();
        }
        answer.map(Into::into)
    }

    pub(super) async fn get_run(&self, call: ToolCall<'_>, arguments: GetRun) -> ToolResult {
        let GetRun { run_id, after_event, output_offset: offset, wait_seconds } = arguments;
        let shown = OutputPart { after_event: after_event.unwrap_or(0), offset };
        let Ok(run) = self.runs.get(&call.caller.principal, run_id) else {
            return recorded(call.caller, &self.history.run(&call.caller.principal, run_id).await?);
        };
        let view = tokio::select! {
            view = self.watch(&run, shown.after_event, wait_seconds, call.context) => view,
            // Cancelling the call does not stop the run.
            () = call.entry.given_up() => run.view(),
        };
        self.answer_or_failure(call.caller, &run, &view, shown).await
    }

    pub(super) async fn cancel_run(&self, caller: &Caller, CancelRun { run_id }: CancelRun) -> ToolResult {
        let run = self.runs.get(&caller.principal, run_id)?;
        let mut result = self.answer(caller, &run, &stop(&run).await, OutputPart::default()).await?;
        // The program did not succeed, but the cancellation did.
        result.is_error = Some(false);
        Ok(result)
    }

    /// Waits for the end and reports progress meanwhile.
    async fn watch(&self, run: &Run, after_event: u64, wait: Option<Wait>, context: &Context) -> RunView {
        let over = run.wait(wait.map_or(self.options.wait_default, |wait| wait.0));
        Progress::of(context, run.events(after_event.saturating_add(1))).until(over).await
    }

    /// As [`Self::answer`]; a run that failed also says what it had printed.
    async fn answer_or_failure(&self, caller: &Caller, run: &Run, view: &RunView, shown: OutputPart) -> ToolResult {
        let Some(Err(failure)) = &view.result else { return self.answer(caller, run, view, shown).await };
        let (stdout, stderr) = run.output(shown.after_event, view.newest);
        Ok(RunAnswer { caller, view, output: (&stdout, &stderr), offset: None }.failed(failure))
    }

    async fn answer(&self, caller: &Caller, run: &Run, view: &RunView, shown: OutputPart) -> ToolResult {
        let so_far;
        let (output, offset, finished): ((&CapturedOutput, &CapturedOutput), _, _) = match &view.result {
            Some(Ok(report)) => ((&report.stdout, &report.stderr), shown.offset, Some(report)),
            Some(Err(failure)) => return Err(failure.clone()),
            None => {
                so_far = run.output(shown.after_event, view.newest);
                ((&so_far.0, &so_far.1), None, None)
            }
        };
        let answer = RunAnswer { caller, view, output, offset };
        let (mut report, bytes_left) = answer.without_pictures();
        let mut pictures = Pictures::default();
        if let (Some(finished), None) = (finished, offset) {
            pictures = picture::of_run(self, caller.view, finished, bytes_left).await;
            let Pictures { smaller, left_out, .. } = pictures;
            if smaller > 0 {
                report.hints.push(format!("Pictures that are smaller here than their files: {smaller}"));
            }
            if left_out > 0 {
                report.hints.push(format!("Pictures that are not shown here: {left_out}; their links open them"));
            }
        }
        Ok(answer.with_pictures(&report, pictures.blocks))
    }

    /// How a run is now, with its result when it has ended.
    ///
    /// # Errors
    /// There is no such run of the caller, or its token may not ask.
    pub(super) async fn task(&self, caller: &Caller, id: &str) -> Result<GetTaskResult, ErrorData> {
        let run = run_of_task(caller, id).map_err(|failure| refused(&failure))?;
        let detailed = match self.runs.get(&caller.principal, run) {
            Ok(run) => {
                let view = run.view();
                DetailedTask::new(task_of(&view), self.payload(caller, &run, &view).await)
            }
            Err(_) => self.recorded_task(caller, run).await?,
        };
        Ok(GetTaskResult::new(detailed))
    }

    /// Cancels a run.
    ///
    /// # Errors
    /// As [`Self::task`].
    pub(super) fn cancel_task(&self, caller: &Caller, id: &str) -> Result<(), ErrorData> {
        let found = run_of_task(caller, id).and_then(|run| self.runs.get(&caller.principal, run));
        found.map(|run| run.cancel()).map_err(|failure| refused(&failure))
    }

    async fn payload(&self, caller: &Caller, run: &Run, view: &RunView) -> TaskPayload {
        match &view.result {
            None => TaskPayload::Working,
            Some(Ok(report)) if report.outcome.ended == Ended::Cancelled => TaskPayload::Cancelled,
            Some(_) => ended(caller, self.answer(caller, run, view, OutputPart::default()).await),
        }
    }

    /// A run that is no longer in memory.
    async fn recorded_task(&self, caller: &Caller, run: RunId) -> Result<DetailedTask, ErrorData> {
        let line = self.history.run(&caller.principal, run).await.map_err(|failure| refused(&failure))?;
        let begun = run.unix_ms();
        let updated = line.end.as_ref().map_or(begun, |end| end.unix_ms);
        let task = Task::new(run.to_string(), TaskStatus::Working, rfc3339(begun / 1000), rfc3339(updated / 1000));
        let payload = match &line.end {
            None => TaskPayload::Working,
            // As it was while the run was in memory: a status that is final does not change.
            Some(end) if end.word.as_str() == Ended::Cancelled.word() => TaskPayload::Cancelled,
            Some(_) => ended(caller, recorded(caller, &line)),
        };
        Ok(DetailedTask::new(task, payload))
    }
}

/// This time limit and no other.
fn limited_to(seconds: Option<u64>) -> Result<Option<Limits>, Failure> {
    match seconds {
        Some(0) => Err(Failure::argument("timeoutSeconds", "it must be at least 1")),
        seconds => Ok(seconds.map(|seconds| Limits { wall_ms: seconds.saturating_mul(1000), ..Limits::UNBOUNDED })),
    }
}

async fn stop(run: &Run) -> RunView {
    run.cancel();
    run.wait(STOP_WAIT).await
}

fn task_of(view: &RunView) -> Task {
    let ran_s = i64::try_from(view.wall.as_secs()).unwrap_or_default();
    let (created, updated) = (rfc3339(view.created_unix_s), rfc3339(view.created_unix_s.saturating_add(ran_s)));
    Task::new(view.run.to_string(), TaskStatus::Working, created, updated).with_poll_interval_ms(POLL_MS)
}

/// A run that is no longer in memory.
fn recorded(caller: &Caller, line: &HistoryLine) -> ToolResult {
    match line.end.as_ref().and_then(history::failure) {
        Some(failure) => Err(failure),
        None => Ok(content::recorded(caller, &RunReport::from(line))),
    }
}

/// A run that has ended, as a task. Only a failure of ours is one: a program that fails is a result.
fn ended(caller: &Caller, answer: ToolResult) -> TaskPayload {
    match answer {
        Ok(result) => TaskPayload::Completed { result: object(serde_json::to_value(result).unwrap_or_default()) },
        Err(failure) => {
            let message = caller.sentence(&failure);
            TaskPayload::Failed { error: object(json!({"code": ErrorCode::INTERNAL_ERROR.0, "message": message})) }
        }
    }
}

/// The run that a task is, where the caller's token may ask for it.
fn run_of_task(caller: &Caller, id: &str) -> Result<RunId, Failure> {
    caller.check_scope(ToolName::GetRun.scope())?;
    id.parse().map_err(|_| Failure::new(Code::RunNotFound, "There is no such task."))
}

/// Clients forget a task that is not known, so a fault of ours says something else.
fn refused(failure: &Failure) -> ErrorData {
    match failure.code {
        Code::RunNotFound => ErrorData::invalid_params("taskId: there is no such task, or it is no longer kept.", None),
        Code::DatabaseUnavailable | Code::Internal => ErrorData::internal_error(failure.message.clone(), None),
        _ => ErrorData::invalid_params(failure.message.clone(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_unknown_only_where_there_is_no_run() {
        for (code, expected) in [
            (Code::RunNotFound, ErrorCode::INVALID_PARAMS),
            (Code::InsufficientScope, ErrorCode::INVALID_PARAMS),
            (Code::DatabaseUnavailable, ErrorCode::INTERNAL_ERROR),
            (Code::Internal, ErrorCode::INTERNAL_ERROR),
        ] {
            let error = refused(&Failure::new(code, "why"));
            assert_eq!((error.code, error.message.contains("no such task")), (expected, code == Code::RunNotFound));
        }
    }
}
