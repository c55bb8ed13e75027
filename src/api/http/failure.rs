//! Our errors as HTTP answers: a status, a code, a sentence, the request's id. Each interface has its own form for them:
//! `/v1` problem details (RFC 9457), `/api/v2` a `message`, everything else an `error` object.

use axum::{
    Json,
    extract::Request,
    http::{HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use crate::domain::{
    error::{Code, Failure},
    id::RequestId,
};

/// How long a refused client should wait where nothing better is known, in seconds.
const RETRY_AFTER_S: u64 = 2;

/// A failure on its way to a client.
pub struct HttpFailure(pub Failure, pub RequestId);

/// A failure that gets the id of its request on its way out: see [`in_the_interfaces_form`].
pub struct Refused(pub Failure);

/// Stays with an answer until it is known whose form it takes.
#[derive(Clone)]
struct RenderedError(Failure);

/// A problem (RFC 9457).
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// What kind of problem: `about:blank`, since `code` says it.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The status in words.
    pub title: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// One sentence that says what to do.
    pub detail: String,
    /// A stable word for programs.
    pub code: &'static str,
    /// Names the request in the server's log.
    pub request_id: String,
    /// The argument that breaks its rule, where it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub param: Option<String>,
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self(failure)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        HttpFailure(self.0, RequestId::new()).into_response()
    }
}

impl IntoResponse for HttpFailure {
    fn into_response(self) -> Response {
        let Self(failure, request) = self;
        let Failure { code, message, .. } = &failure;
        let status = status(code.http_status());
        let body = json!({"error": {"code": code.as_str(), "message": message, "requestId": request.to_string()}});
        let mut response = (status, Json(body)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if *code == Code::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        retry_after(&mut response, &failure);
        response.extensions_mut().insert(RenderedError(failure));
        response
    }
}

/// Gives every failure below `/v1` and `/api/v2` the form of that interface, wherever on the way it arose.
pub async fn in_the_interfaces_form(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let below = |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let form = if below("/v1") {
        problem
    } else if below("/api") {
        message
    } else {
        return next.run(request).await;
    };
    let id = request.extensions().get::<RequestId>().copied().unwrap_or_else(RequestId::new);
    let mut response = next.run(request).await;
    match response.extensions_mut().remove::<RenderedError>() {
        Some(RenderedError(failure)) => {
            let mut new = restate(&response, form(&failure, id));
            retry_after(&mut new, &failure);
            new
        }
        None => response,
    }
}

fn restate(old: &Response, mut new: Response) -> Response {
    // What the status needs, such as Allow, stays; what described the old body does not.
    for (name, value) in old.headers() {
        if !matches!(*name, header::CONTENT_TYPE | header::CONTENT_LENGTH) {
            new.headers_mut().insert(name, value.clone());
        }
    }
    new
}

fn problem(failure: &Failure, request: RequestId) -> Response {
    let status = status(match failure.code {
        // Well formed, and not to be done: RFC 9110, 15.5.21. The runner is named in the body.
        Code::InvalidArgument | Code::RunnerNotFound => 422,
        // The queue is full of this client's own runs.
        Code::QueueFull => 429,
        code => code.http_status(),
    });
    let problem = Problem {
        kind: "about:blank",
        title: status.canonical_reason().unwrap_or("Error"),
        status: status.as_u16(),
        detail: failure.message.clone(),
        code: failure.code.as_str(),
        request_id: request.to_string(),
        param: failure.argument.clone(),
    };
    (status, [(header::CONTENT_TYPE, "application/problem+json")], Json(problem)).into_response()
}

/// Piston's form.
fn message(failure: &Failure, request: RequestId) -> Response {
    let status = status(match failure.code {
        Code::RunnerNotFound => 400,
        Code::QueueFull => 429,
        code => code.http_status(),
    });
    let body = json!({"message": failure.message, "code": failure.code.as_str(), "requestId": request.to_string()});
    (status, Json(body)).into_response()
}

fn status(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

fn retry_after(response: &mut Response, failure: &Failure) {
    if matches!(response.status(), StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
        let seconds = failure.retry_after_s.unwrap_or(RETRY_AFTER_S);
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
}

/// For paths that nobody serves.
pub async fn not_found(axum::Extension(request): axum::Extension<RequestId>) -> Response {
    let why = "Nothing is served at this path: the tools are at /mcp, the page is at /, the API is described at /docs.";
    HttpFailure(Failure::new(Code::NotFound, why), request).into_response()
}

/// For methods that a path does not have.
pub async fn no_such_method(axum::Extension(request): axum::Extension<RequestId>) -> Response {
    let why = "This path does not take that method: the header `Allow` names those it takes.";
    HttpFailure(Failure::new(Code::MethodNotAllowed, why), request).into_response()
}

/// For a handler that panicked: the panic itself was logged by the hook, the client learns nothing of it.
pub fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    let failure = Failure::new(Code::Internal, "The server failed to answer: its log says why.");
    HttpFailure(failure, RequestId::new()).into_response()
}
