//! The API held against its own description by schemathesis: requests made from the document, good and bad, and every
//! answer compared with it.

use std::{path::Path, process::Stdio, time::Duration};

use tokio::{process::Command, time::timeout};

use crate::support::{FakeServer, server::TOKEN};

const TIME_MAX: Duration = Duration::from_mins(5);

#[tokio::test(flavor = "multi_thread")]
async fn api_conforms_to_its_openapi_document() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tool = root.join("target/test-tools/schemathesis/bin/schemathesis");
    assert!(tool.exists(), "{} is missing: run ./test.sh, which prepares it", tool.display());
    let server = FakeServer::start().await;
    // The program that reads a module's source.
    server.engine.answer("find_spec", "x = 1");
    // Those that format.
    server.engine.answer("Formats and checks a", r#"{"code":"x = 1\n","problems":[]}"#);
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(tool);
    command
        .arg("--config-file")
        .arg(root.join("tests/clients/schemathesis.toml"))
        .args(["run", &format!("http://{}/openapi.json", server.address), "-H"])
        .arg(format!("Authorization: Bearer {TOKEN}"))
        .args(["--max-examples", "25", "--seed", "7", "--continue-on-failure"])
        .current_dir(folder.path())
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let output = timeout(TIME_MAX, command.kill_on_drop(true).stdin(Stdio::null()).output());
    let output = output.await.expect("it ends in time").expect("it starts");
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}\n{out}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    server.stop().await;
}
