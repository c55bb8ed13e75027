//! Sign-in over HTTP: metadata (RFC 8414, RFC 9728), registration, the consent page, tokens, revocation, and the
//! challenge that leads clients there. Addresses in answers come from the settings, never from `Host`.
//!
//! With sign-in off, none of these paths exists: some clients ignore their configured token once discovery answers.

mod authorize;
mod consent;
mod middleware;

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::Body,
    extract::{FromRef, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use tower_http::cors::{AllowHeaders, Any, CorsLayer};

pub use self::middleware::{assertion, challenge, recognize};
use super::{auth::ClientAddress, body::Bodies, error};
use crate::{
    domain::Failure,
    services::{
        issuer::Issuer,
        sign_in::{Refusal, Registration, SignIn, TokenRequest},
    },
};

/// The largest body and the largest request for authorization, in bytes.
const BODY_BYTES_MAX: usize = 64 << 10;
const RESOURCE: &str = "/.well-known/oauth-protected-resource";
const NO_STORE: (HeaderName, &str) = (header::CACHE_CONTROL, "no-store");
/// What a request to the endpoints for tokens has once at most.
const ONCE: [&str; 9] = [
    "grant_type",
    "client_id",
    "client_secret",
    "code",
    "redirect_uri",
    "code_verifier",
    "refresh_token",
    "scope",
    "token",
];

/// The parts of the surface.
#[derive(Clone)]
pub struct SignInParts {
    /// The address of the server, without a slash at its end.
    pub base: Arc<str>,
    /// `None` where the tokens of another issuer are accepted.
    pub embedded: Option<Arc<SignIn>>,
    pub issuer: Option<Arc<Issuer>>,
    /// Cloudflare Access.
    pub access: Option<Arc<Issuer>>,
    pub bodies: Bodies,
}

/// The parts of the embedded authorization server.
#[derive(Clone, FromRef)]
struct ServerParts {
    sign_in: Arc<SignIn>,
    bodies: Bodies,
}

impl SignInParts {
    fn server(&self) -> Option<ServerParts> {
        let bodies = self.bodies.clone().at_most(BODY_BYTES_MAX);
        self.embedded.clone().map(|sign_in| ServerParts { sign_in, bodies })
    }
}

/// What any page may ask, and clients without a page: it needs neither a token of the server nor a cookie.
pub fn open(parts: SignInParts) -> Router {
    let server = parts.server();
    let cors = CorsLayer::new()
        .allow_origin(Any)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([header::WWW_AUTHENTICATE, header::RETRY_AFTER])
        .max_age(Duration::from_hours(1));
    let described = ["", "/mcp", "/mcp/"].map(|path| format!("{RESOURCE}{path}"));
    let described = described.iter().fold(Router::new(), |router, path| router.route(path, get(resource)));
    let described = described.with_state(parts);
    server.map_or_else(Router::new, endpoints).merge(described).layer(cors)
}

fn endpoints(parts: ServerParts) -> Router {
    Router::new()
        .route("/.well-known/oauth-authorization-server", get(server))
        .route("/register", post(register))
        .route("/token", post(token))
        .route("/revoke", post(revoke))
        .with_state(parts)
}

/// The consent page, for the server's own pages only.
pub fn pages(parts: &SignInParts) -> Router {
    parts.server().map_or_else(Router::new, |parts| {
        Router::new()
            .route("/authorize", get(authorize::show).post(authorize::decide))
            .route("/authorize/callback", get(authorize::provider_callback))
            .with_state(parts)
    })
}

/// RFC 9728. What the query of `/mcp` chooses is part of the address, which clients compare whole.
async fn resource(State(parts): State<SignInParts>, uri: Uri) -> Json<Value> {
    let base = &parts.base;
    let issuer = parts.issuer.as_ref().or(parts.access.as_ref()).map_or(&**base, |issuer| issuer.name());
    Json(json!({
        "resource": format!("{base}/mcp{}", middleware::known_query(uri.query())),
        "authorization_servers": [issuer],
        "scopes_supported": ["run", "files"],
        "bearer_methods_supported": ["header"],
        "resource_name": "Code sandbox",
    }))
}

/// RFC 8414.
async fn server(State(sign_in): State<Arc<SignIn>>) -> Json<Value> {
    let issuer = sign_in.issuer();
    let methods = json!(["none", "client_secret_post"]);
    Json(json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{issuer}/authorize"),
        "token_endpoint": format!("{issuer}/token"),
        "registration_endpoint": format!("{issuer}/register"),
        "revocation_endpoint": format!("{issuer}/revoke"),
        "scopes_supported": ["run", "files", "offline_access"],
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code", "refresh_token"],
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": methods,
        "revocation_endpoint_auth_methods_supported": methods,
        "authorization_response_iss_parameter_supported": true,
        "client_id_metadata_document_supported": sign_in.takes_documents(),
    }))
}

/// RFC 7591.
async fn register(State(parts): State<ServerParts>, request: Request) -> Result<Response, ProtocolError> {
    let from = ClientAddress::of(&request);
    let (head, body) = request.into_parts();
    let sent = parts.bodies.json(&head.headers, body).await;
    let (sent, _) = sent.map_err(|failure| ProtocolError::unreadable(failure, "invalid_client_metadata"))?;
    let registered = parts.sign_in.register(Registration::read(&sent), from).await?;
    // Clients expect to read back what they sent. What is remembered of it replaces it.
    let mut answer = sent;
    answer.insert("client_id".into(), registered.client.id.into());
    answer.insert("client_id_issued_at".into(), registered.issued_unix_s.into());
    answer.insert("client_name".into(), registered.client.name.into());
    answer.insert("redirect_uris".into(), registered.client.redirects.into());
    answer.insert("grant_types".into(), json!(["authorization_code", "refresh_token"]));
    answer.insert("response_types".into(), json!(["code"]));
    answer.remove("client_secret");
    let method = if registered.secret.is_some() { "client_secret_post" } else { "none" };
    answer.insert("token_endpoint_auth_method".into(), method.into());
    if let Some(secret) = &registered.secret {
        answer.insert("client_secret".into(), secret.expose_secret().into());
        answer.insert("client_secret_expires_at".into(), 0.into());
    }
    Ok((StatusCode::CREATED, [NO_STORE], Json(answer)).into_response())
}

async fn token(State(parts): State<ServerParts>, request: Request) -> Result<Response, ProtocolError> {
    let from = ClientAddress::of(&request);
    let form = form_of(&parts.bodies, request).await?;
    let request = TokenRequest {
        grant_type: form.text("grant_type"),
        client: form.text("client_id"),
        secret: form.get("client_secret").map(str::to_owned),
        code: form.text("code"),
        redirect: form.get("redirect_uri").map(str::to_owned),
        verifier: form.text("code_verifier"),
        refresh: form.text("refresh_token"),
        scope: form.text("scope"),
        resources: form.all("resource"),
    };
    let granted = parts.sign_in.grant(&request, from).await?;
    let scopes: Vec<_> = granted.scopes.iter().map(|scope| scope.as_str()).collect();
    let body = json!({
        "access_token": granted.access.expose_secret(),
        "token_type": "Bearer",
        "expires_in": granted.expires_s,
        "refresh_token": granted.refresh.expose_secret(),
        "scope": scopes.join(" "),
    });
    Ok(([NO_STORE], Json(body)).into_response())
}

/// RFC 7009.
async fn revoke(State(parts): State<ServerParts>, request: Request) -> Result<Response, ProtocolError> {
    let form = form_of(&parts.bodies, request).await?;
    let token = form.get("token").ok_or(Refusal::InvalidRequest("the token is missing"))?;
    parts.sign_in.revoke(token, form.get("client_id"), form.get("client_secret")).await?;
    Ok((StatusCode::OK, [NO_STORE]).into_response())
}

/// An error of the protocol (RFC 6749, 5.2).
struct ProtocolError {
    status: StatusCode,
    word: &'static str,
    description: String,
    retry_after_s: Option<u64>,
}

impl ProtocolError {
    /// For a body that could not be read.
    fn unreadable(failure: Failure, word: &'static str) -> Self {
        let status = error::status(failure.code);
        let retry_after_s = error::retry_after_s(status, &failure);
        Self { status, word, description: failure.message, retry_after_s }
    }
}

impl From<Refusal> for ProtocolError {
    fn from(refusal: Refusal) -> Self {
        let (status, retry_after_s) = match refusal {
            Refusal::InvalidClient => (StatusCode::UNAUTHORIZED, None),
            Refusal::TooMany => (StatusCode::TOO_MANY_REQUESTS, Some(30)),
            Refusal::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, Some(30)),
            _ => (StatusCode::BAD_REQUEST, None),
        };
        Self { status, word: refusal.word(), description: refusal.to_string(), retry_after_s }
    }
}

impl IntoResponse for ProtocolError {
    fn into_response(self) -> Response {
        let Self { status, word, description, retry_after_s } = self;
        let retry = retry_after_s.map(|seconds| [(header::RETRY_AFTER, HeaderValue::from(seconds))]);
        (status, [NO_STORE], retry, Json(json!({"error": word, "error_description": description}))).into_response()
    }
}

/// The form of a request to the endpoints for tokens.
async fn form_of(bodies: &Bodies, request: Request) -> Result<Form, ProtocolError> {
    let (head, body) = request.into_parts();
    let form = Form::receive(bodies, &head.headers, body).await;
    let form = form.map_err(|failure| ProtocolError::unreadable(failure, "invalid_request"))?;
    if form.repeats(&ONCE) {
        return Err(Refusal::InvalidRequest("a parameter is there twice").into());
    }
    Ok(form)
}

/// The pairs of a query or a form, in their order. [`Self::get`] ignores a name that occurs twice; callers refuse it by
/// [`Self::repeats`].
#[derive(Debug, Default)]
struct Form(Vec<(String, String)>);

impl Form {
    async fn receive(bodies: &Bodies, headers: &HeaderMap, body: Body) -> Result<Self, Failure> {
        bodies.read(headers, body).await.map(|body| Self::read(&body))
    }

    fn read(text: &[u8]) -> Self {
        // PostgreSQL refuses a text with a NUL, which would look as if the database were away.
        let pairs =
            form_urlencoded::parse(text).map(|(key, value)| (key.into_owned(), value.replace('\0', "\u{fffd}")));
        Self(pairs.collect())
    }

    /// Every value of a name.
    fn all(&self, name: &str) -> Vec<String> {
        self.0.iter().filter(|(key, _)| key == name).map(|(_, value)| value.clone()).collect()
    }

    /// The value of a name that is there once and not empty.
    fn get(&self, name: &str) -> Option<&str> {
        let mut values = self.0.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_str());
        values.next().filter(|_| values.next().is_none()).filter(|value| !value.is_empty())
    }

    fn text(&self, name: &str) -> String {
        self.get(name).unwrap_or_default().to_owned()
    }

    /// Whether one of these names is there twice.
    fn repeats(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.0.iter().filter(|(key, _)| key == name).count() > 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Code;

    #[test]
    fn a_refusal_for_want_of_memory_says_when_to_try_again() {
        for (failure, expected) in [
            (Failure::new(Code::QueueFull, "x"), (429, Some("2"))),
            (Failure::new(Code::QueueFull, "x").retry_after(7), (429, Some("7"))),
            (Failure::new(Code::TooLarge, "x"), (413, None)),
        ] {
            let answer = ProtocolError::unreadable(failure, "invalid_request").into_response();
            let after = answer.headers().get(header::RETRY_AFTER).map(|after| after.to_str().expect("text"));
            assert_eq!((answer.status().as_u16(), after), expected);
        }
    }
}
