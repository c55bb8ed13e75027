//! Our Python client, as it is installed from its wheel, against a server process with real programs: every example of
//! its README, and a folder both ways.

use crate::{
    mcp_clients::{client_with, tool},
    support::{process::Process, server::TOKEN},
};

/// Runs a part of the checks with the client's own interpreter.
async fn check(part: &str) {
    let bin = tool("client/bin");
    let server = Process::start(&[]).await;
    let url = server.url("");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let variables = [("PATH", &*path), ("SANDBOX_URL", &*url), ("MCP_API_TOKEN", TOKEN)];
    client_with(&bin.join("python"), &["-W", "error", "python_client.py", part], &variables).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readme_examples_print_what_they_say() {
    check("examples").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn folders_travel_both_ways() {
    check("folders").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_client_leaves_no_run() {
    check("interruption").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn typed_cells_share_variables() {
    check("repl").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn session_examples_print_what_they_say() {
    check("sessions").await;
}
