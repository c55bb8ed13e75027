//! Clients of Jupyter's API as people install them, against a server process with the real kernel of Python.

use crate::{
    mcp_clients::{client_with, tool},
    support::{process::Process, server::TOKEN},
};

/// Runs a part with the interpreter of the clients.
async fn check(part: &str) {
    let python = tool("jupyter/bin/python");
    let server = Process::start(&[]).await;
    let url = server.url("");
    let variables = [("SANDBOX_URL", &*url), ("MCP_API_TOKEN", TOKEN)];
    client_with(&python, &["jupyter_clients.py", part], &variables).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nbclient_executes_notebooks_through_a_gateway_manager() {
    check("nbclient").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn papermill_sets_parameters_and_executes_notebooks() {
    check("papermill").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jupyter_kernel_client_executes_and_restarts() {
    check("kernel_client").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn open_webui_executor_gets_output_pictures_and_errors() {
    check("open_webui").await;
}
