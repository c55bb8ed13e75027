//! Clients that two generators make of the API's description, against a server on the fake engine; and what linters say
//! of the description.

use std::{path::Path, process::Stdio, time::Duration};

use tokio::{process::Command, time::timeout};

use crate::{
    mcp_clients::tool,
    support::{FakeServer, server::TOKEN},
};

const TIME_MAX: Duration = Duration::from_mins(3);
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/generated/openapi.json");
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/generated");

/// Runs a command to its end in a folder, with the Node of the tests before any other; what it printed.
async fn run(program: &Path, arguments: &[&str], folder: &Path) -> String {
    let node = tool("npm/node_modules/.bin");
    let path = format!("{}:{}", node.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(folder)
        .env("PATH", path)
        .env("PYTHONPATH", folder)
        .env("REDOCLY_TELEMETRY", "off")
        .env("REDOCLY_SUPPRESS_UPDATE_NOTICE", "true")
        .kill_on_drop(true);
    let output = timeout(TIME_MAX, command.stdin(Stdio::null()).output()).await.expect("it ends in time");
    let output = output.expect("it starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {}\n{out}\n{err}", output.status);
    format!("{out}{err}")
}

#[tokio::test(flavor = "multi_thread")]
async fn python_client_runs_follows_and_reads() {
    let bin = tool("openapi-python/bin");
    let folder = tempfile::tempdir().expect("a folder");
    let config = format!("{SOURCES}/config.yaml");
    let made = folder.path().join("sandbox_api").display().to_string();
    let mut generate = vec!["generate", "--path", DOCUMENT, "--config", &config, "--fail-on-warning"];
    generate.extend(["--meta", "none", "--output-path", &made]);
    run(&bin.join("openapi-python-client"), &generate, folder.path()).await;
    let server = FakeServer::start().await;
    let (script, url) = (format!("{SOURCES}/client.py"), format!("http://{}", server.address));
    run(&bin.join("python"), &["-B", &script, &url, TOKEN], folder.path()).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn typescript_client_runs_follows_and_reads() {
    let modules = tool("openapi-npm/node_modules");
    let folder = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink(&modules, folder.path().join("node_modules")).expect("a link");
    std::fs::copy(format!("{SOURCES}/client.ts"), folder.path().join("client.ts")).expect("copied");
    std::fs::write(folder.path().join("package.json"), r#"{"type": "module"}"#).expect("written");
    let bin = modules.join(".bin");
    run(&bin.join("openapi-typescript"), &[DOCUMENT, "--output", "schema.d.ts"], folder.path()).await;
    let options = ["--strict", "--target", "es2023", "--module", "nodenext", "--types", "node", "client.ts"];
    run(&bin.join("tsc"), &options, folder.path()).await;
    let server = FakeServer::start().await;
    let url = format!("http://{}", server.address);
    run(Path::new("node"), &["client.js", &url, TOKEN], folder.path()).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn description_has_no_finding_of_redocly_and_spectral() {
    let bin = tool("openapi-npm/node_modules/.bin");
    let folder = tempfile::tempdir().expect("a folder");
    let (redocly, spectral) = (format!("{SOURCES}/redocly.yaml"), format!("{SOURCES}/spectral.yaml"));
    run(&bin.join("redocly"), &["lint", "--config", &redocly, DOCUMENT], folder.path()).await;
    let said = ["lint", "--ruleset", &spectral, "--fail-severity", "hint", DOCUMENT];
    run(&bin.join("spectral"), &said, folder.path()).await;
}
