//! The standard input of a running program: unchanged bytes, one piece for each request.

use axum::{extract::State, http::StatusCode};
use schemars::JsonSchema;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{call::Call, names::InRun};
use crate::{
    api::{
        http::{Reply, body::RequestBody},
        schema::Binary,
    },
    services::runs::{INPUT_BYTES_MAX, Runs},
};

#[derive(Deserialize, JsonSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct SendInput {
    /// Whether this piece is the last.
    eof: Option<bool>,
}

/// Send a running program input.
///
/// For a run that was begun with `stdinOpen`. The body is the next piece of the program's standard input, of any kind
/// and at most 1 MiB; it is accepted completely or not at all, and pieces keep the order of their answers. `eof` ends
/// the input after it. A piece for a program that has not started is kept. While a program does not read, the answer
/// waits up to five seconds and is then 429.
#[utoipa::path(
    post, path = "/v1/runs/{runId}/stdin", tag = "runs", operation_id = "sendInput",
    params(InRun, SendInput),
    request_body(content = Binary, content_type = "application/octet-stream", description = "The bytes, or none."),
    responses((status = 202, description = "It was accepted and is sent to the program.")),
)]
pub(super) async fn send(State(runs): State<Runs>, call: Call<SendInput>, body: RequestBody) -> Reply<StatusCode> {
    let last = call.query.eof.unwrap_or(false);
    // No body is read for a run that does not exist.
    let run = runs.get(&call.who, call.run()?)?;
    let bytes = body.at_most(INPUT_BYTES_MAX).read().await?;
    run.send_input(bytes, last).await?;
    Ok(StatusCode::ACCEPTED)
}
