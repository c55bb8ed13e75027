//! `/api/v2`: Piston's interface, for programs that were written for it. Names, defaults and statuses are Piston's;
//! features of Piston that this server lacks (a separate compile stage, packages that are installed over HTTP) are
//! reported or left out.
//!
//! Each program runs in a conversation of its own, which is deleted after the run, so no request
//! sees anything of another. A request that is broken off cancels its program. The bearer token is the same as
//! everywhere.

mod request;

use axum::{Json, Router, extract::State};
use futures_util::StreamExt as _;
use serde::Serialize;
use utoipa::{ToSchema, openapi::OpenApi};
use utoipa_axum::{router::OpenApiRouter, routes};

use self::request::{Execute, version};
use super::{Answer, ApiCall, ApiError, ApiParts, RequestBody};
use crate::{
    api::schema::{answers, parse::by_size},
    domain::{
        Code, ConversationId, Ended, Event, EventKind,
        outcome::signal_text,
        text::{cut_mark, ms},
    },
    ports::runner::Runner,
    services::runs::{Report, RunRequest, Runs},
};

answers! {
    /// A language that can be run.
    pub struct Runtime(runner: &Runner) {
        /// Its name.
        language: String = runner.language.to_string(),
        /// Its version: three numbers.
        version: String = version(runner).to_string(),
        /// Other names of it.
        aliases: Vec<String> = runner.aliases.iter().map(ToString::to_string).collect(),
    }

    /// A package: here an image, which is always installed.
    pub struct Package(runner: &Runner) {
        /// The language's name.
        language: String = runner.language.to_string(),
        /// Its version.
        #[serde(rename = "language_version")]
        language_version: String = version(runner).to_string(),
        /// Always true: only installed images are listed.
        installed: bool = true,
    }
}

/// The result of an execution.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PistonExecuted)]
struct Executed {
    /// The run stage; there is no other.
    run: Stage,
    /// The language's own name.
    language: String,
    /// Its version.
    version: String,
}

/// A stage.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PistonStage)]
struct Stage {
    /// What it printed to standard output.
    stdout: String,
    /// What it printed to standard error.
    stderr: String,
    /// Both, in the order in which they were printed.
    output: String,
    /// The exit status; null when a signal or a limit ended it.
    code: Option<i32>,
    /// The signal that ended it, or null.
    signal: Option<String>,
    /// A sentence about the failure, if it failed.
    message: Option<String>,
    /// Two letters for the failure, if it failed: RE for a nonzero exit status, SG for a signal, TO for the time limit,
    /// OL and EL for the limit on output.
    status: Option<&'static str>,
    /// CPU time in milliseconds, where it is known.
    cpu_time: Option<u64>,
    /// Wall clock in milliseconds.
    wall_time: u64,
    /// Peak memory of its sandbox, in bytes, where it is known.
    memory: Option<u64>,
}

fn described() -> OpenApiRouter<ApiParts> {
    let (schemas, paths, packages) = routes!(packages);
    let packages = (schemas, paths, packages.fallback(no_packages));
    OpenApiRouter::new().routes(routes!(runtimes)).routes(routes!(execute)).routes(packages)
}

/// The routes. They must be mounted behind a middleware that puts a `Principal` into the request's extensions.
pub fn router(parts: ApiParts) -> Router {
    described().split_for_parts().0.with_state(parts)
}

/// What the routes are, for the document.
pub fn document() -> OpenApi {
    described().into_openapi()
}

/// List the languages that can be run.
///
/// Each has one version: that of its image.
#[utoipa::path(
    get, path = "/api/v2/runtimes", tag = "piston", operation_id = "pistonRuntimes",
    responses((status = 200, description = "The languages.", body = Vec<Runtime>)),
)]
async fn runtimes(State(runs): State<Runs>) -> Json<Vec<Runtime>> {
    Json(runs.runners().iter().map(Runtime::from).collect())
}

/// List the packages.
///
/// They are the installed images; none is installed or removed over this interface.
#[utoipa::path(
    get, path = "/api/v2/packages", tag = "piston", operation_id = "pistonPackages",
    responses((status = 200, description = "The packages.", body = Vec<Package>)),
)]
async fn packages(State(runs): State<Runs>) -> Json<Vec<Package>> {
    Json(runs.runners().iter().map(Package::from).collect())
}

async fn no_packages() -> ApiError {
    let why = "Languages are container images here: the operator adds one by building it, not over this interface.";
    ApiError::new(Code::MethodNotAllowed, why)
}

/// Run a program.
///
/// The first file in UTF-8 is the program; the others are in its folder. A program that fails is a result.
#[utoipa::path(
    post, path = "/api/v2/execute", tag = "piston", operation_id = "pistonExecute",
    request_body(content = Execute),
    responses((status = 200, description = "The result.", body = Executed)),
)]
async fn execute(call: ApiCall, body: RequestBody) -> Answer<Executed> {
    let runs = &call.parts.runs;
    // Without capacity the body is not read.
    runs.check_capacity(&call.who)?;
    let (members, bytes) = body.members().await?;
    let length = bytes.len();
    // Its memory is for others while the run is waited for; admission counts what the run keeps.
    drop(bytes);
    let mut execute = Execute::parse(members)?;
    let limits = execute.limits(runs.limits())?;
    let parsed = by_size(length, move || execute.take_files().map(|files| (execute, files))).await;
    let (mut execute, (program, files)) = parsed?;
    let runner = execute.runtime(&runs.runners())?;
    let (args, stdin) = (execute.args.take(), execute.stdin.take());
    // The rest may be long too: it is ignored.
    drop(execute);
    let request = RunRequest {
        args: args.unwrap_or_default(),
        stdin: stdin.unwrap_or_default().into(),
        limits: Some(limits),
        files,
        throw_away: true,
        ..RunRequest::new(call.key(ConversationId::fresh()), runner.language.clone(), program)
    };
    let handle = call.begin(request).map_err(|failure| failure.renamed("code", "files"))?;
    let report = handle.finished().await?;
    let events = handle.events(0).collect().await;
    Ok(Json(Executed::new(&report, events, version(&runner).to_string())))
}

impl Executed {
    fn new(report: &Report, events: Vec<Event>, version: String) -> Self {
        let outcome = &report.outcome;
        let figures = &outcome.figures;
        let stopped = || (None, Some("SIGKILL".to_owned()));
        let ((code, signal), status) = match outcome.ended {
            Ended::Exited { code: 0 } => ((Some(0), None), None),
            Ended::Exited { code } => ((Some(code), None), Some("RE")),
            Ended::ProcessLimit => ((Some(1), None), Some("RE")),
            Ended::Signaled { signal } => ((None, Some(signal_text(signal))), Some("SG")),
            Ended::TimedOut => (stopped(), Some("TO")),
            Ended::OutputLimit if figures.stderr_bytes > figures.stdout_bytes => (stopped(), Some("EL")),
            Ended::OutputLimit => (stopped(), Some("OL")),
            Ended::OutOfMemory | Ended::DiskLimit(_) | Ended::Cancelled => (stopped(), Some("SG")),
        };
        let run = Stage {
            stdout: report.stdout.text.clone(),
            stderr: report.stderr.text.clone(),
            output: output(events),
            code,
            signal,
            message: status.map(|_| outcome.sentence()),
            status,
            cpu_time: figures.cpu.map(ms),
            wall_time: ms(figures.wall),
            memory: figures.memory_peak_bytes,
        };
        Self { run, language: report.language.to_string(), version }
    }
}

fn output(events: Vec<Event>) -> String {
    let mut bytes = Vec::new();
    for event in events {
        match event.kind {
            EventKind::Output(_, piece) => bytes.extend_from_slice(&piece),
            EventKind::Cut { stdout_bytes, stderr_bytes } => {
                bytes.extend_from_slice(cut_mark(stdout_bytes + stderr_bytes).as_bytes());
            }
            _ => {}
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
