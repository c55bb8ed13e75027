//! The error of every HTTP surface. It travels in the response's extensions until [`render`], which knows the surface
//! and the request's id, writes the body: `/v1` problem details (RFC 9457), `/api/v2` a `message`, CodeRunner's paths
//! its own form, `/jupyter` Jupyter's, `/openai` OpenAI's, a JSON-RPC request a JSON-RPC error, everything else an
//! `error` object.

use axum::{
    Json,
    extract::Request,
    http::{HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{coderunner, e2b, is_below, jupyter, librechat, openai};
use crate::{
    api::schema::{ErrorCode, ErrorResult},
    domain::{Code, Failure, RunId, error::Operation, id::RequestId},
};

/// How long a refused client should wait when nothing better is known, in seconds.
const RETRY_AFTER_S: u64 = 2;

/// What a handler answers, or why there is no answer.
pub type Reply<T = Response> = Result<T, ApiError>;

/// An answer in JSON.
pub type Answer<T> = Reply<Json<T>>;

/// The answer of an operation that says nothing but that it is done.
pub(super) fn no_content<T>(done: Result<T, Failure>) -> Reply<StatusCode> {
    done?;
    Ok(StatusCode::NO_CONTENT)
}

/// A request that fails.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    pub failure: Failure,
    /// Instead of the status that the code has on the surface.
    pub status: Option<StatusCode>,
    /// Makes it a JSON-RPC error.
    pub rpc: Option<RpcError>,
    /// The run that was begun and failed. Boxed, since errors travel in results.
    pub run: Option<Box<FailedRun>>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct FailedRun {
    pub id: RunId,
    /// What it had printed to standard output and standard error, for interfaces whose answers have it.
    pub printed: [String; 2],
}

/// What a JSON-RPC error has beside the failure.
#[derive(Debug, Clone, PartialEq)]
pub struct RpcError {
    pub code: i64,
    /// The id of the request, so that the client finds what was refused. Boxed, since errors travel in results.
    pub id: Option<Box<Value>>,
}

/// A problem (RFC 9457).
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// The type of the problem: `about:blank`, since `code` names it.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The status in words.
    pub title: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// One sentence that says what to do.
    pub detail: String,
    /// A stable word for programs.
    #[schema(value_type = ErrorCode)]
    pub code: &'static str,
    /// Identifies the request in the server's log.
    pub request_id: String,
    /// The invalid argument, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub param: Option<String>,
    /// The run that was begun and failed, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
}

/// Why a request to `/api/v2` is refused.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PistonRefusal {
    /// What is wrong and what to do.
    pub message: String,
    /// A stable word for programs; Piston has no such member.
    #[schema(value_type = Option<ErrorCode>)]
    pub code: Option<String>,
    /// Identifies the request in the server's log; Piston has no such member.
    pub request_id: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Surface {
    V1,
    CodeRunner,
    Piston,
    Jupyter,
    LibreChat,
    E2b,
    Connect,
    OpenAi,
    Other,
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        Self { failure, status: None, rpc: None, run: None }
    }
}

impl ApiError {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Failure::new(code, message).into()
    }

    /// Why a run failed that was begun.
    pub fn of_run(id: RunId, failure: Failure) -> Self {
        Self { run: Some(Box::new(FailedRun { id, printed: <[String; 2]>::default() })), ..failure.into() }
    }

    fn into_answer(self, surface: Surface, request: RequestId) -> Response {
        let Self { failure, status, rpc, run } = self;
        let status = status.unwrap_or_else(|| surface.status(failure.code));
        let (code, message) = (failure.code.as_str(), failure.sentence(|operation| surface.name(operation)));
        let request_id = request.to_string();
        if let Some(RpcError { code: rpc, id }) = rpc {
            let data = json!({"code": code, "requestId": request_id});
            let error = json!({"code": rpc, "message": message, "data": data});
            return (status, Json(json!({"jsonrpc": "2.0", "id": id, "error": error}))).into_response();
        }
        let body = match surface {
            Surface::V1 => {
                let title = status.canonical_reason().unwrap_or("Error");
                let (kind, status, param) = ("about:blank", status.as_u16(), failure.argument);
                let run_id = run.map(|run| run.id.to_string());
                json!(Problem { kind, title, status, detail: message, code, request_id, param, run_id })
            }
            Surface::Piston => {
                let (code, request_id) = (Some(code.to_owned()), Some(request_id));
                json!(PistonRefusal { message, code, request_id })
            }
            // The members of each of CodeRunner's answers, so that any of its clients finds what it reads.
            Surface::CodeRunner => {
                let [stdout, stderr] = run.map(|run| run.printed).unwrap_or_default();
                let stderr = coderunner::with_sentence(stderr, &message);
                json!({"status": "error", "error": message, "detail": message, "code": code, "requestId": request_id,
                    "stdout": stdout, "stderr": stderr, "execution_time": 0.0, "cpu_time": 0.0})
            }
            Surface::Jupyter => json!({"message": message, "reason": null, "code": code, "requestId": request_id}),
            Surface::LibreChat if status == StatusCode::TOO_MANY_REQUESTS => {
                // The word that its clients know; they show the wait to the model.
                let (error, wait) = ("rate_limited", failure.retry_after_s.unwrap_or(RETRY_AFTER_S));
                json!({"error": error, "message": message, "requestId": request_id, "retry_after_seconds": wait})
            }
            Surface::LibreChat => json!({"error": code, "message": message, "requestId": request_id}),
            Surface::Connect => json!({"code": e2b::connect_code(status), "message": message, "requestId": request_id}),
            Surface::E2b => json!({"code": status.as_u16(), "message": message, "requestId": request_id}),
            Surface::OpenAi => json!({"error": {"message": message, "type": openai::error_type(status),
                "param": failure.argument, "code": code, "requestId": request_id}}),
            Surface::Other => json!(ErrorResult::from((failure.code, message, request))),
        };
        let mut answer = (status, Json(body)).into_response();
        if surface == Surface::V1 {
            answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        }
        answer
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status.unwrap_or_else(|| http_status(self.failure.code)).into_response();
        if self.failure.code == Code::Unauthorized {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// Writes the bodies of errors, wherever on the way they arose.
pub async fn render(request: Request, next: Next) -> Response {
    let surface = Surface::of(request.uri().path());
    let id = request.extensions().get::<RequestId>().copied().unwrap_or_else(RequestId::new);
    let mut response = next.run(request).await;
    let Some(error) = response.extensions_mut().remove::<ApiError>() else { return response };
    let failure = error.failure.clone();
    let mut answer = error.into_answer(surface, id);
    let retry_after_s = retry_after_s(answer.status(), &failure);
    // For the log.
    answer.extensions_mut().insert(failure);
    keep_headers(response.headers(), &mut answer);
    answer.headers_mut().entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if let Some(seconds) = retry_after_s {
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}

/// When a client may send a request again that was refused with a status; `None` where a later one fares no better.
pub(super) fn retry_after_s(status: StatusCode, failure: &Failure) -> Option<u64> {
    let is_for_now = matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS);
    is_for_now.then(|| failure.retry_after_s.unwrap_or(RETRY_AFTER_S))
}

/// An answer to a part of a request, with the body that [`render`] writes for a whole one.
pub(super) fn rendered(mut response: Response, request: RequestId) -> Response {
    let error = response.extensions_mut().remove::<ApiError>();
    error.map_or(response, |error| error.into_answer(Surface::Other, request))
}

/// Keeps what a status needs, such as `Allow`, but not what described the old body.
pub(super) fn keep_headers(old: &header::HeaderMap, answer: &mut Response) {
    for (name, value) in old {
        if !matches!(*name, header::CONTENT_TYPE | header::CONTENT_LENGTH) {
            answer.headers_mut().insert(name, value.clone());
        }
    }
}

impl Surface {
    fn of(path: &str) -> Self {
        let below = |root| is_below(root, path);
        match path {
            _ if coderunner::is_own(path) => Self::CodeRunner,
            _ if below("/v1") => Self::V1,
            _ if below("/api") => Self::Piston,
            _ if below(jupyter::ROOT) => Self::Jupyter,
            _ if below(librechat::ROOT) => Self::LibreChat,
            _ if e2b::is_call(path) => Self::Connect,
            _ if below(e2b::ROOT) => Self::E2b,
            _ if below(openai::ROOT) => Self::OpenAi,
            _ => Self::Other,
        }
    }

    fn status(self, code: Code) -> StatusCode {
        match (self, code) {
            // Well formed, but not possible (RFC 9110, 15.5.21). The runner is named in the body.
            (Self::V1 | Self::LibreChat, Code::InvalidArgument | Code::RunnerNotFound) => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            (Self::Piston, Code::RunnerNotFound) => StatusCode::BAD_REQUEST,
            // The queue is full of this client's own runs.
            (Self::V1 | Self::Piston | Self::LibreChat | Self::E2b | Self::Connect, Code::QueueFull) => {
                StatusCode::TOO_MANY_REQUESTS
            }
            // Its clients know only kernels that are there and those that are not.
            (Self::Jupyter, Code::SessionEnded) => StatusCode::NOT_FOUND,
            (_, code) => http_status(code),
        }
    }

    fn name(self, operation: Operation) -> &'static str {
        match (self, operation) {
            (Self::Piston, Operation::ListRunners) => "GET /api/v2/runtimes",
            (Self::Piston, Operation::WriteFile) => "files",
            (_, Operation::ListRunners) => "GET /v1/runners",
            (_, Operation::ListFiles) => "GET /v1/conversations/{conversationId}/files",
            (_, Operation::WriteFile) => "PUT /v1/conversations/{conversationId}/files/{path}",
        }
    }
}

/// The status of a code in `/v1`.
pub fn status(code: Code) -> StatusCode {
    Surface::V1.status(code)
}

/// The status that means the same as a code (RFC 9110).
fn http_status(code: Code) -> StatusCode {
    match code {
        Code::InvalidArgument | Code::InvalidRequest => StatusCode::BAD_REQUEST,
        Code::Unauthorized => StatusCode::UNAUTHORIZED,
        Code::Forbidden | Code::InsufficientScope => StatusCode::FORBIDDEN,
        Code::RunnerNotFound
        | Code::ConversationNotFound
        | Code::RunNotFound
        | Code::SessionNotFound
        | Code::TokenNotFound
        | Code::FileNotFound
        | Code::PackagesOff
        | Code::SkillsOff
        | Code::SkillNotFound
        | Code::NotFound => StatusCode::NOT_FOUND,
        Code::SessionEnded => StatusCode::GONE,
        Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Code::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
        Code::NotAFile | Code::ConversationBusy | Code::SessionBusy | Code::InputClosed => StatusCode::CONFLICT,
        Code::FileBusy => StatusCode::LOCKED,
        Code::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Code::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
        Code::IdempotencyKeyReused | Code::BadArchive | Code::BadSkill | Code::PackagesRefused => {
            StatusCode::UNPROCESSABLE_ENTITY
        }
        Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::RateLimited | Code::InputFull => StatusCode::TOO_MANY_REQUESTS,
        Code::QueueFull
        | Code::QueueTimeout
        | Code::SessionsFull
        | Code::ShuttingDown
        | Code::EngineUnavailable
        | Code::DatabaseUnavailable
        | Code::HeldElsewhere
        | Code::IssuerUnavailable
        | Code::ToolUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::EngineFailed | Code::RunnerFailed | Code::EngineLost | Code::ServerLost => StatusCode::BAD_GATEWAY,
        Code::NoSpace | Code::QuotaExceeded => StatusCode::INSUFFICIENT_STORAGE,
        Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// For paths without a route.
pub async fn not_found() -> ApiError {
    let why = "Nothing is served at this path: the tools are at /mcp, the page is at /, the API is described at /docs.";
    ApiError::new(Code::NotFound, why)
}

/// For methods that a path does not have.
pub async fn no_such_method() -> ApiError {
    let why = "This path does not take that method: the header `Allow` names those it takes.";
    ApiError::new(Code::MethodNotAllowed, why)
}

/// For a handler that panicked: the hook logged the panic, the client learns nothing of it.
pub fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    ApiError::new(Code::Internal, "The server failed to answer: its log says why.").into_response()
}
