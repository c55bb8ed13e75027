//! Packages from the index servers that people run: pypiserver, devpi and verdaccio, from their registries.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use super::{Index, JAVASCRIPT, PYTHON, installed, printed, refused};
use crate::support::{free_port, http, server::Server, until};

/// What `test.sh` has installed.
fn tool(path: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/test-tools").join(path);
    assert!(path.exists(), "{} is missing: ./test.sh installs it", path.display());
    path
}

/// A server of packages; it ends with this value.
struct Running {
    url: String,
    folder: TempDir,
    _child: Child,
}

/// Starts a command at a free port. Not at 127.0.0.1, which clients reach without a proxy.
async fn start(folder: TempDir, command: impl FnOnce(&Path, u16) -> Command) -> Running {
    let port = free_port();
    let mut command = command(folder.path(), port);
    command.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.kill_on_drop(true).spawn().expect("it starts");
    let url = format!("http://127.0.0.2:{port}");
    let client = http::client();
    until("it answers", async || {
        let ended = child.try_wait().expect("a status");
        assert!(ended.is_none(), "it ended at its start: {ended:?}");
        client.get(&url).send().await.is_ok()
    })
    .await;
    Running { url, folder, _child: child }
}

#[tokio::test(flavor = "multi_thread")]
async fn pypiserver_serves_what_a_program_imports() {
    let index = Index::start().await;
    let folder = TempDir::new().expect("a folder");
    for (file, bytes) in index.wheels(&["tiny", "needs-tiny", "source"]) {
        fs::write(folder.path().join(file), bytes).expect("written");
    }
    let pypi = start(folder, |folder, port| {
        let mut command = Command::new(tool("pypiserver/bin/pypi-server"));
        command.args(["run", "-i", "127.0.0.2", "-p", &port.to_string(), "--disable-fallback"]);
        command.args(["--hash-algo", "sha256"]).arg(folder);
        command
    })
    .await;
    let url = format!("{}/simple", pypi.url);
    let server = Server::with(&[("SANDBOX_PACKAGES__PYTHON_INDEX", &url), ("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await;
    let names = vec!["needs-tiny==1.0".to_owned(), "tiny==1.0".to_owned()];
    assert_eq!(installed(&server, "a", PYTHON, &["needs_tiny"]).await, (names.clone(), false));
    // The next conversation needs the index no more.
    fs::remove_dir_all(pypi.folder.path()).expect("removed");
    assert_eq!(installed(&server, "b", PYTHON, &["needs_tiny"]).await, (names, true));
    for conversation in ["a", "b"] {
        let code = "import needs_tiny; print(needs_tiny.VALUE)";
        let (stdout, stderr) = printed(&server, conversation, PYTHON, code).await;
        assert_eq!(stdout, "1.0\n", "{stderr}");
    }
    let (code, detail) = refused(&server, "c", PYTHON, "missing").await;
    assert!(code == "packages_refused" && detail.contains("missing"), "{detail}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn devpi_serves_what_a_program_imports() {
    let index = Index::start().await;
    let folder = TempDir::new().expect("a folder");
    let mut init = Command::new(tool("devpi/bin/devpi-init"));
    init.arg("--no-root-pypi").arg("--serverdir").arg(folder.path()).stdout(Stdio::null());
    assert!(init.status().await.expect("it starts").success());
    let devpi = start(folder, |folder, port| {
        let mut command = Command::new(tool("devpi/bin/devpi-server"));
        command.args(["--offline-mode", "--host", "127.0.0.2", "--port", &port.to_string(), "--serverdir"]).arg(folder);
        command
    })
    .await;
    let (client, root) = (http::client(), format!("{}/root/dev", devpi.url));
    let login = client.post(format!("{}/+login", devpi.url)).json(&json!({"user": "root", "password": ""}));
    let login: Value = login.send().await.expect("an answer").json().await.expect("JSON");
    let token = STANDARD.encode(format!("root:{}", login["result"]["password"].as_str().expect("a password")));
    let made = client.put(&root).header("x-devpi-auth", &token).json(&json!({"type": "stage", "bases": []}));
    assert_eq!(made.send().await.expect("an answer").status(), 200);
    for (name, (file, bytes)) in ["tiny", "tiny", "needs-tiny"].iter().zip(index.wheels(&["tiny", "needs-tiny"])) {
        let version = file.split('-').nth(1).expect("a version");
        let mut body = Vec::new();
        for (field, text) in [(":action", "file_upload"), ("name", *name), ("version", version)] {
            body.extend(format!("--cut\r\nContent-Disposition: form-data; name=\"{field}\"\r\n\r\n{text}\r\n").bytes());
        }
        let head = format!("--cut\r\nContent-Disposition: form-data; name=\"content\"; filename=\"{file}\"\r\n\r\n");
        body.extend([head.as_bytes(), &bytes, b"\r\n--cut--\r\n"].concat());
        let sent = client.post(format!("{root}/")).header("x-devpi-auth", &token);
        let sent = sent.header("content-type", "multipart/form-data; boundary=cut").body(body).send().await;
        let answer = sent.expect("an answer");
        assert_eq!(answer.status(), 200, "{}", answer.text().await.expect("a text"));
    }
    let url = format!("{root}/+simple");
    let server = Server::with(&[("SANDBOX_PACKAGES__PYTHON_INDEX", &url), ("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await;
    let names = vec!["needs-tiny==1.0".to_owned(), "tiny==1.0".to_owned()];
    assert_eq!(installed(&server, "a", PYTHON, &["needs_tiny"]).await, (names, false));
    let (stdout, stderr) = printed(&server, "a", PYTHON, "import needs_tiny; print(needs_tiny.VALUE)").await;
    assert_eq!(stdout, "1.0\n", "{stderr}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn verdaccio_serves_what_a_program_requires() {
    let index = Index::start().await;
    let folder = TempDir::new().expect("a folder");
    let config = json!({
        "storage": "storage",
        "auth": {"htpasswd": {"file": "htpasswd"}},
        "uplinks": {},
        "packages": {"**": {"access": "$all", "publish": "$all"}},
    });
    fs::write(folder.path().join("config.yaml"), config.to_string()).expect("written");
    let verdaccio = start(folder, |folder, port| {
        let mut command = Command::new(tool("npm/node_modules/.bin/node"));
        command.arg(tool("verdaccio/node_modules/verdaccio/bin/verdaccio"));
        command.args(["--config".as_ref(), folder.join("config.yaml").as_os_str()]);
        command.args(["--listen", &format!("127.0.0.2:{port}")]);
        command
    })
    .await;
    for name in ["left", "uses-left"] {
        let (mut document, file, bytes) = index.tarball(name);
        document["_id"] = name.into();
        let data = json!({"content_type": "application/octet-stream", "data": STANDARD.encode(&bytes),
            "length": bytes.len()});
        document["_attachments"] = Value::Object([(file, data)].into_iter().collect());
        let sent = http::client().put(format!("{}/{name}", verdaccio.url)).json(&document).send().await;
        let answer = sent.expect("an answer");
        assert_eq!(answer.status(), 201, "{}", answer.text().await.expect("a text"));
    }
    let settings = [("SANDBOX_PACKAGES__NPM_REGISTRY", verdaccio.url.as_str()), ("SANDBOX_STANDBY__TOTAL_MAX", "0")];
    let server = Server::with(&settings).await;
    let names = vec!["left@1.0.0".to_owned(), "uses-left@1.0.0".to_owned()];
    assert_eq!(installed(&server, "a", JAVASCRIPT, &["uses-left"]).await, (names, false));
    let (stdout, stderr) = printed(&server, "a", JAVASCRIPT, "console.log(require('uses-left'))").await;
    assert_eq!(stdout, "left used\n", "{stderr}");
    let (code, detail) = refused(&server, "a", JAVASCRIPT, "missing").await;
    assert_eq!(code, "packages_refused", "{detail}");
    server.stop().await;
}
