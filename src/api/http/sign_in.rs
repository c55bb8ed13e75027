//! Sign-in over HTTP: metadata (RFC 8414, RFC 9728), registration, the consent page, tokens, revocation, and the
//! challenge that leads clients there. Addresses in answers come from the settings, never from `Host`.
//!
//! With sign-in off, none of these paths exists: some clients ignore their configured token once discovery answers.

mod authorize;
mod challenge;
pub mod connections;
mod consent;
mod form;
mod provider;
mod recognize;
mod token;

use std::{net::IpAddr, net::Ipv4Addr, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::Body,
    extract::{FromRef, Request, State},
    http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde_json::{Value, json};
use tower_http::cors::{AllowHeaders, Any, CorsLayer};

pub use self::{
    challenge::{Challenge, challenge},
    recognize::{assertion, recognize},
};
use super::{auth::ClientAddress, body::Bodies};
use crate::{
    domain::error::Failure,
    services::{
        connections::Connections,
        issuer::Issuer,
        sign_in::{Refusal, Registration, SignIn},
    },
};

/// The largest body and the largest request for authorization, in bytes.
const BODY_BYTES_MAX: usize = 64 << 10;
const RESOURCE: &str = "/.well-known/oauth-protected-resource";
const NO_STORE: (HeaderName, &str) = (header::CACHE_CONTROL, "no-store");

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
    pub connections: Arc<Connections>,
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
        .expose_headers([header::WWW_AUTHENTICATE])
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
        .route("/token", post(token::token))
        .route("/revoke", post(token::revoke))
        .with_state(parts)
}

/// The consent page, for the server's own pages only.
pub fn pages(parts: &SignInParts) -> Router {
    parts.server().map_or_else(Router::new, |parts| {
        Router::new()
            .route("/authorize", get(authorize::show).post(authorize::decide))
            .route("/authorize/callback", get(provider::back))
            .with_state(parts)
    })
}

/// RFC 9728. What the query of `/mcp` chooses is part of the address, which clients compare whole.
async fn resource(State(parts): State<SignInParts>, uri: Uri) -> Json<Value> {
    let base = &parts.base;
    let issuer = parts.issuer.as_ref().or(parts.access.as_ref()).map_or(&**base, |issuer| issuer.name());
    Json(json!({
        "resource": format!("{base}/mcp{}", challenge::known_query(uri.query())),
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

/// RFC 7591. What is not known of the request is ignored.
async fn register(State(parts): State<ServerParts>, request: Request) -> Response {
    let from = address(&request);
    let (head, body) = request.into_parts();
    let wanted = match parts.bodies.json(&head.headers, body).await {
        Ok((wanted, _)) => wanted,
        Err(failure) => return unreadable(&failure, "invalid_client_metadata"),
    };
    let text = |name: &str| wanted.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let redirects = wanted.get("redirect_uris").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let registration = Registration {
        name: text("client_name"),
        redirects: redirects.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        auth_method: text("token_endpoint_auth_method"),
    };
    let registered = match parts.sign_in.register(registration, from).await {
        Ok(registered) => registered,
        Err(refusal) => return refused(refusal),
    };
    // Clients expect to read back what they sent. What is remembered of it replaces it.
    let mut answer = wanted;
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
        answer.insert("client_secret".into(), secrecy::ExposeSecret::expose_secret(secret).into());
        answer.insert("client_secret_expires_at".into(), 0.into());
    }
    (StatusCode::CREATED, [NO_STORE], Json(answer)).into_response()
}

/// An error of the protocol (RFC 6749, 5.2).
fn refused(refusal: Refusal) -> Response {
    let status = match refusal {
        Refusal::InvalidClient => StatusCode::UNAUTHORIZED,
        Refusal::TooMany => StatusCode::TOO_MANY_REQUESTS,
        Refusal::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_REQUEST,
    };
    let body = Json(json!({"error": refusal.word(), "error_description": refusal.to_string()}));
    let mut response = (status, [NO_STORE], body).into_response();
    if matches!(refusal, Refusal::TooMany | Refusal::Unavailable) {
        response.headers_mut().insert(header::RETRY_AFTER, 30.into());
    }
    response
}

fn unreadable(failure: &Failure, word: &str) -> Response {
    let status = super::error::status(failure.code);
    (status, [NO_STORE], Json(json!({"error": word, "error_description": failure.message}))).into_response()
}

fn address(request: &Request) -> IpAddr {
    request.extensions().get().map_or(Ipv4Addr::UNSPECIFIED.into(), |ClientAddress(address)| *address)
}

async fn read_form(bodies: &Bodies, headers: &HeaderMap, body: Body) -> Result<form::Form, Failure> {
    let body = bodies.read(headers, body).await?;
    Ok(form::Form::read(&body))
}
