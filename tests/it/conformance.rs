//! The official conformance suite of MCP, against a whole server. The suite has no option for a token, so a small proxy
//! adds the header. Checks that need the suite's own fixtures are listed as expected failures, with reasons.

use std::{net::SocketAddr, path::Path, process::Stdio, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use tokio::{process::Command, time::timeout};

use crate::support::{FakeServer, http, server::TOKEN};

const TIME_MAX: Duration = Duration::from_mins(4);
const BODY_BYTES_MAX: usize = 16 << 20;

/// Passes everything on, the host's name too, and adds the token.
async fn pass(State((http, target)): State<(reqwest::Client, SocketAddr)>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let Ok(body) = to_bytes(body, BODY_BYTES_MAX).await else { return StatusCode::BAD_REQUEST.into_response() };
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let call = http.request(head.method, format!("http://{target}{path}")).headers(head.headers);
    let Ok(answer) = call.bearer_auth(TOKEN).body(body).send().await else {
        return StatusCode::BAD_GATEWAY.into_response();
    };
    let (status, mut headers) = (answer.status(), answer.headers().clone());
    headers.remove(header::TRANSFER_ENCODING);
    (status, headers, Body::from_stream(answer.bytes_stream())).into_response()
}

async fn suite(revision: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let bin = root.join("target/test-tools/npm/node_modules/.bin");
    let tool = bin.join("conformance");
    assert!(tool.exists(), "{} is missing: run ./test.sh, which prepares it", tool.display());
    let server = FakeServer::start().await;
    let proxy = Router::new().fallback(pass).with_state((http::client(), server.address));
    let (address, serving) = http::serve(proxy).await;
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(bin.join("node"));
    command
        .arg(tool)
        .args(["server", "--url", &format!("http://{address}/mcp"), "--requirements", revision, "-o"])
        .arg(folder.path())
        .arg("--expected-failures")
        .arg(root.join(format!("tests/clients/conformance-{revision}.yml")))
        .current_dir(folder.path());
    let output = timeout(TIME_MAX, command.kill_on_drop(true).stdin(Stdio::null()).output());
    let output = output.await.expect("it ends in time").expect("it starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    serving.abort();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn server_passes_the_conformance_suite_with_sessions() {
    suite("2025-11-25").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn server_passes_the_conformance_suite_without_sessions() {
    suite("2026-07-28").await;
}
