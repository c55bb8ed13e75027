//! Our Python client, as it is installed from its wheel, against a server process with real programs: every example of
//! its README, and a folder both ways.

use std::{path::Path, process::Stdio, time::Duration};

use tokio::{process::Command, time::timeout};

use crate::support::{process::Process, server::TOKEN};

const CLIENT_TIME_MAX: Duration = Duration::from_mins(3);

/// Runs a part of the checks with the client's own interpreter.
async fn check(server: &Process, part: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let bin = root.join("target/test-tools/client/bin");
    assert!(bin.join("python").exists(), "{} is missing: run ./test.sh, which prepares it", bin.display());
    let mut command = Command::new(bin.join("python"));
    command
        .args(["-W", "error", "python_client.py", part])
        .current_dir(root.join("tests/clients"))
        .env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default()))
        .envs([("SANDBOX_URL", server.url("").as_str()), ("MCP_API_TOKEN", TOKEN), ("PYTHONDONTWRITEBYTECODE", "1")])
        .kill_on_drop(true);
    let output = timeout(CLIENT_TIME_MAX, command.stdin(Stdio::null()).output());
    let output = output.await.expect("the client ends in time").expect("the client starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{part}: {}\n{out}\n{err}", output.status);
}

#[tokio::test(flavor = "multi_thread")]
async fn readme_examples_print_what_they_say() {
    let server = Process::start(&[]).await;
    check(&server, "examples").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn folders_travel_both_ways() {
    let server = Process::start(&[]).await;
    check(&server, "folders").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_client_leaves_no_run() {
    let server = Process::start(&[]).await;
    check(&server, "interruption").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn typed_cells_share_variables() {
    let server = Process::start(&[]).await;
    check(&server, "repl").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn session_examples_print_what_they_say() {
    let server = Process::start(&[]).await;
    check(&server, "sessions").await;
    server.stop().await;
}
