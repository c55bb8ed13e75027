//! Clients of Jupyter's API as people install them, against a server process with the real kernel of Python.

use std::{path::Path, process::Stdio, time::Duration};

use tokio::{process::Command, time::timeout};

use crate::support::{process::Process, server::TOKEN};

const CLIENT_TIME_MAX: Duration = Duration::from_mins(3);

/// Runs a part with the interpreter of the clients.
async fn check(part: &str) {
    let server = Process::start(&[]).await;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join("target/test-tools/jupyter/bin/python");
    assert!(python.exists(), "{} is missing: run ./test.sh, which prepares it", python.display());
    let mut command = Command::new(python);
    command
        .args(["jupyter_clients.py", part])
        .current_dir(root.join("tests/clients"))
        .envs([("SANDBOX_URL", server.url("").as_str()), ("MCP_API_TOKEN", TOKEN), ("PYTHONDONTWRITEBYTECODE", "1")])
        .kill_on_drop(true);
    let output = timeout(CLIENT_TIME_MAX, command.stdin(Stdio::null()).output());
    let output = output.await.expect("the client ends in time").expect("the client starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{part}: {}\n{out}\n{err}", output.status);
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
