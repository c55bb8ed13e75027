//! The sign-in of clients that other people wrote, with a person who is a script: the Python SDKs, the TypeScript SDK,
//! mcp-remote, the MCP Inspector, and the conformance suite of MCP for authorization servers.

use std::{process::Stdio, time::Duration};

use tokio::{process::Command, time::timeout};

use super::{ON, Visitor};
use crate::{
    mcp_clients::{client, tool},
    support::{FakeServer, free_port, server::TOKEN},
};

async fn signs_in(program: &str, script: &str) {
    let program = tool(program);
    let server = FakeServer::with(&[ON]).await;
    let url = format!("http://{}/mcp", server.address);
    client(&program, &[script, &url, TOKEN]).await;
    client(&program, &[script, &format!("{url}?names=dotted"), TOKEN]).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_sdk_1_signs_in() {
    signs_in("mcp1/bin/python", "signing_in_mcp1.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_sdk_2_signs_in() {
    signs_in("mcp2/bin/python", "signing_in_mcp2.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn typescript_sdk_signs_in() {
    signs_in("npm/node_modules/.bin/node", "signing_in.mjs").await;
}

/// A client that prints the address for its person. It ends when it has printed what is wanted.
async fn prints_its_address(command: &[&str], input: &str, wanted: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut driver = Command::new("python3");
    driver
        .args(["signing_in_by_browser.py", TOKEN, wanted])
        .args(command)
        .current_dir(format!("{}/tests/clients", env!("CARGO_MANIFEST_DIR")))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        // What the client remembers is the test's own.
        .env("HOME", folder.path())
        .env("INPUT", input)
        // Without it the Inspector wants a terminal.
        .env("MCP_AUTO_OPEN_ENABLED", "true")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = timeout(Duration::from_mins(3), driver.output()).await.expect("it ends").expect("it starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
}

#[tokio::test(flavor = "multi_thread")]
async fn mcp_remote_signs_in() {
    let (node, remote) = (tool("npm/node_modules/.bin/node"), tool("npm/node_modules/.bin/mcp-remote"));
    let server = FakeServer::with(&[ON]).await;
    let (url, port) = (format!("http://{}/mcp", server.address), free_port().to_string());
    let client = r#"{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}"#;
    let call =
        r#"{"name":"sandbox_run_code","arguments":{"conversationId":"r","language":"python","code":"print Hi!"}}"#;
    let input = [
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{client}}}"#),
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#.to_owned(),
        format!(r#"{{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{call}}}"#),
        String::new(),
    ];
    let (node, remote) = (node.to_string_lossy(), remote.to_string_lossy());
    prints_its_address(&[&node, &remote, &url, &port, "--allow-http"], &input.join("\n"), "Hi!").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inspector_signs_in() {
    let (node, inspector) = (tool("npm/node_modules/.bin/node"), tool("npm/node_modules/.bin/mcp-inspector"));
    let server = FakeServer::with(&[ON]).await;
    let (url, callback) = (format!("http://{}/mcp", server.address), format!("http://127.0.0.1:{}/cb", free_port()));
    let (node, inspector) = (node.to_string_lossy(), inspector.to_string_lossy());
    let call = ["--method", "tools/call", "--tool-name", "sandbox_run_code", "--tool-arg", "conversationId=i"];
    let mut command = vec![&*node, &*inspector, "--cli", "--server-url", &url, "--transport", "http"];
    command.extend(["--callback-url", &callback]);
    command.extend(call.into_iter().chain(["language=python", "code=print Hi!"]));
    prints_its_address(&command, "", "Hi!").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conformance_suite_passes_its_scenarios_of_authorization() {
    let (node, suite) = (tool("npm/node_modules/.bin/node"), tool("npm/node_modules/.bin/conformance"));
    let server = FakeServer::with(&[ON]).await;
    let visitor = Visitor::of(&server).await;
    let port = free_port().to_string();
    let client = visitor.client(&[&format!("http://127.0.0.1:{port}/callback")]).await;
    let (node, suite) = (node.to_string_lossy(), suite.to_string_lossy());
    let resource = format!("{}/mcp", visitor.base);
    let mut command = vec![&*node, &*suite, "authorization", "--url", &visitor.base, "--client-id", &client];
    command.extend(["--port", &port, "--resource", &resource]);
    prints_its_address(&command, "", "Total: 3 passed, 0 failed").await;
    server.stop().await;
}
