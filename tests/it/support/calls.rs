//! Requests to a server with a token, and what it answers.

use std::{net::SocketAddr, ops::Deref};

use reqwest::{Client, Method, RequestBuilder};
use serde_json::Value;

use super::{FakeServer, Server, process::Process, server::TOKEN};

/// A server of a test.
pub trait Reached {
    fn reached(&self) -> (&Client, SocketAddr);
}

impl Reached for FakeServer {
    fn reached(&self) -> (&Client, SocketAddr) {
        (&self.http, self.address)
    }
}

impl Reached for Server {
    fn reached(&self) -> (&Client, SocketAddr) {
        (&self.http, self.address)
    }
}

impl Reached for Process {
    fn reached(&self) -> (&Client, SocketAddr) {
        (&self.http, self.address)
    }
}

/// What leads to a server.
impl<T: Deref<Target: Reached>> Reached for T {
    fn reached(&self) -> (&Client, SocketAddr) {
        (**self).reached()
    }
}

/// A request with a token.
pub fn request(server: &impl Reached, token: &str, method: Method, path: &str) -> RequestBuilder {
    let (http, address) = server.reached();
    http.request(method, format!("http://{address}{path}")).bearer_auth(token)
}

/// Sends a request with a token, and JSON where there is any; its status and what it answers.
pub async fn call(
    server: &impl Reached,
    token: &str,
    method: Method,
    path: &str,
    body: impl Into<Option<Value>>,
) -> (u16, Value) {
    let request = request(server, token, method, path);
    let request = if let Some(body) = body.into() { request.json(&body) } else { request };
    let answer = request.send().await.expect("an answer");
    (answer.status().as_u16(), answer.json().await.unwrap_or_default())
}

/// The same with the token of the settings.
pub async fn ask(server: &impl Reached, method: Method, path: &str, body: impl Into<Option<Value>>) -> (u16, Value) {
    call(server, TOKEN, method, path, body).await
}

/// What is there.
pub async fn get(server: &impl Reached, path: &str) -> Value {
    let (status, body) = ask(server, Method::GET, path, None).await;
    assert_eq!(status, 200, "{path}: {body}");
    body
}

pub async fn post(server: &impl Reached, path: &str, body: Value) -> Value {
    ask(server, Method::POST, path, body).await.1
}

/// A new token: its id and itself.
pub async fn create(server: &impl Reached, wanted: Value) -> (String, String) {
    let (status, made) = ask(server, Method::POST, "/v1/tokens", wanted).await;
    assert_eq!(status, 201, "{made}");
    let text = |name: &str| made[name].as_str().expect(name).to_owned();
    (text("id"), text("token"))
}

/// Opens a session, or finds the one that is open; its path.
pub async fn open_session(server: &impl Reached, token: &str, wanted: Value) -> String {
    let (status, opened) = call(server, token, Method::POST, "/v1/sessions", wanted).await;
    assert!(matches!(status, 200 | 201), "{opened}");
    format!("/v1/sessions/{}", opened["sessionId"].as_str().expect("an id"))
}

/// Runs a cell of a session; its result.
pub async fn cell(server: &impl Reached, token: &str, session: &str, code: &str) -> Value {
    let body = serde_json::json!({"code": code});
    let (status, run) = call(server, token, Method::POST, &format!("{session}/cells"), body).await;
    assert_eq!(status, 200, "{run}");
    run["result"].clone()
}

/// What a program printed to both streams, by its result.
pub fn streams(result: &Value) -> (String, String) {
    let text = |name: &str| result[name].as_str().unwrap_or_else(|| panic!("{result}")).to_owned();
    (text("stdout"), text("stderr"))
}

/// All metrics as text.
pub async fn metrics(server: &impl Reached) -> String {
    let answer = request(server, TOKEN, Method::GET, "/metrics").send().await.expect("an answer");
    answer.text().await.expect("text")
}

pub async fn metric(server: &impl Reached, series: &str) -> u64 {
    value(&metrics(server).await, series)
}

/// The value of a series, by its whole name with labels.
pub fn value(text: &str, series: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in\n{text}")).parse().expect("a whole number")
}
