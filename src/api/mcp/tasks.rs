//! Runs as tasks (SEP-2663), for clients that declare that extension: a run that goes on when its call returns is a
//! task, whose id is the run's. Other clients get the run's id in a text.

use rmcp::{
    ErrorData,
    model::{
        CallToolResponse, CallToolResult, CreateTaskResult, DetailedTask, ErrorCode, GetTaskResult, JsonObject, Task,
        TaskPayload, TaskStatus,
    },
};
use serde_json::{Value, json};

use super::{Caller, McpParts, caller::ToolContext, describe::ToolName, waiting::OutputPart};
use crate::{
    domain::{
        error::{Code, Failure},
        id::RunId,
        outcome::Ended,
        text::rfc3339,
    },
    services::runs::{Run, RunView},
};

/// How often a client is to ask.
const POLL_MS: u64 = 1000;

/// Whether the client of a call knows tasks.
pub(super) fn are_known(context: ToolContext<'_>) -> bool {
    context.client_capabilities().is_some_and(|client| client.supports_tasks())
}

/// The answer to a call whose run goes on.
pub(super) fn begun(view: &RunView) -> CallToolResponse {
    CallToolResponse::Task(CreateTaskResult::new(task_of(view)))
}

fn task_of(view: &RunView) -> Task {
    let ran_s = i64::try_from(view.wall.as_secs()).unwrap_or_default();
    let (created, updated) = (rfc3339(view.created_unix_s), rfc3339(view.created_unix_s.saturating_add(ran_s)));
    Task::new(view.run.to_string(), TaskStatus::Working, created, updated).with_poll_interval_ms(POLL_MS)
}

impl McpParts {
    /// How a run is now, with its result when it has ended.
    ///
    /// # Errors
    /// There is no such run of the caller, or its token may not ask.
    pub(super) async fn task(&self, caller: &Caller, id: &str) -> Result<GetTaskResult, ErrorData> {
        let detailed = match self.run_of_task(caller, id) {
            Ok(run) => {
                let view = run.view();
                DetailedTask::new(task_of(&view), self.payload(caller, &run, &view).await)
            }
            Err(failure) if failure.code == Code::RunNotFound => self.recorded_task(caller, id).await?,
            Err(failure) => return Err(refused(&failure)),
        };
        Ok(GetTaskResult::new(detailed))
    }

    /// Cancels a run.
    ///
    /// # Errors
    /// As [`Self::task`].
    pub(super) fn cancel_task(&self, caller: &Caller, id: &str) -> Result<(), ErrorData> {
        self.run_of_task(caller, id).map(|run| run.cancel()).map_err(|failure| refused(&failure))
    }

    fn run_of_task(&self, caller: &Caller, id: &str) -> Result<std::sync::Arc<Run>, Failure> {
        caller.check_scope(ToolName::GetRun.scope())?;
        let run = id.parse::<RunId>().map_err(|_| none())?;
        self.runs.get(&caller.principal, run)
    }

    async fn payload(&self, caller: &Caller, run: &Run, view: &RunView) -> TaskPayload {
        match &view.result {
            None => TaskPayload::Working,
            Some(Err(failure)) => failed(caller, failure),
            Some(Ok(report)) if report.outcome.ended == Ended::Cancelled => TaskPayload::Cancelled,
            Some(Ok(_)) => match self.answer(caller, run, view, OutputPart::default()).await {
                Ok(result) => completed(&result),
                Err(failure) => failed(caller, &failure),
            },
        }
    }

    /// A run that is no longer in memory.
    async fn recorded_task(&self, caller: &Caller, id: &str) -> Result<DetailedTask, ErrorData> {
        let run = id.parse::<RunId>().map_err(|_| refused(&none()))?;
        let line = self.history.run(&caller.principal, run).await.map_err(|failure| refused(&failure))?;
        let begun = run.unix_ms();
        let updated = line.end.as_ref().map_or(begun, |end| end.unix_ms);
        let task = Task::new(id, TaskStatus::Working, rfc3339(begun / 1000), rfc3339(updated / 1000));
        let payload = match self.recorded(caller, run).await {
            _ if line.end.is_none() => TaskPayload::Working,
            // As it was while the run was in memory: a status that is final does not change.
            _ if line.end.as_ref().is_some_and(|end| end.word.as_str() == Ended::Cancelled.word()) => {
                TaskPayload::Cancelled
            }
            Ok(result) => completed(&result),
            Err(failure) => failed(caller, &failure),
        };
        Ok(DetailedTask::new(task, payload))
    }
}

fn completed(result: &CallToolResult) -> TaskPayload {
    TaskPayload::Completed { result: object(serde_json::to_value(result).unwrap_or_default()) }
}

/// A failure of ours. A program that fails is a result.
fn failed(caller: &Caller, failure: &Failure) -> TaskPayload {
    let message = caller.sentence(failure);
    TaskPayload::Failed { error: object(json!({"code": ErrorCode::INTERNAL_ERROR.0, "message": message})) }
}

fn object(value: Value) -> JsonObject {
    match value {
        Value::Object(object) => object,
        _ => JsonObject::new(),
    }
}

fn none() -> Failure {
    Failure::new(Code::RunNotFound, "There is no such task.")
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
