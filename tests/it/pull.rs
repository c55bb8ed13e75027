//! `runners pull`, from a registry of this test's own: the parts of the distribution API that an engine asks for.

use std::{collections::HashMap, process::Stdio, sync::Arc};

use axum::{
    Router,
    extract::{Path, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::{net::TcpListener, process::Command};

use crate::support::{
    engines::docker,
    server::{FILE_SECRET, TOKEN},
};

const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// By digest; a tag is a manifest's other name.
type Blobs = HashMap<String, Vec<u8>>;

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", mcp_sandbox_server::domain::text::hex(&Sha256::digest(bytes)))
}

/// An image of one small layer with these labels, under its tag.
fn add(blobs: &mut Blobs, tag: &str, labels: &Value) {
    let mut layer = tar::Builder::new(Vec::new());
    let mut head = tar::Header::new_gnu();
    head.set_size(tag.len() as u64);
    head.set_mode(0o644);
    layer.append_data(&mut head, "tag", tag.as_bytes()).expect("a file");
    let layer = layer.into_inner().expect("a layer");
    let config = json!({"architecture": "amd64", "os": "linux", "config": {"Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]}});
    let config = config.to_string().into_bytes();
    let part = |kind: &str, bytes: &[u8]| json!({"mediaType": kind, "size": bytes.len(), "digest": digest(bytes)});
    let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST,
        "config": part("application/vnd.docker.container.image.v1+json", &config),
        "layers": [part("application/vnd.docker.image.rootfs.diff.tar", &layer)]});
    let manifest = manifest.to_string().into_bytes();
    blobs.insert(tag.to_owned(), manifest.clone());
    for bytes in [manifest, config, layer] {
        blobs.insert(digest(&bytes), bytes);
    }
}

async fn fetch(State(blobs): State<Arc<Blobs>>, Path((_, kind, name)): Path<(String, String, String)>) -> Response {
    let Some(bytes) = blobs.get(&name) else { return StatusCode::NOT_FOUND.into_response() };
    let media_type = if kind == "manifests" { MANIFEST } else { "application/octet-stream" };
    (
        [
            (header::CONTENT_TYPE, media_type.to_owned()),
            ("docker-content-digest".parse().expect("a name"), digest(bytes)),
        ],
        bytes.clone(),
    )
        .into_response()
}

/// Executes its arguments with a terminal as their input and output.
const IN_TERMINAL: &str = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";

/// What a bar is drawn with, and what brings the cursor back to its beginning.
const DRAWN: [char; 4] = ['█', '░', '\r', '\u{1b}'];

async fn pull(images: &[String]) -> (bool, String, String) {
    pull_by(&[], images).await
}

/// `before` is the command that executes the server's.
async fn pull_by(before: &[&str], images: &[String]) -> (bool, String, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let command = [before, &[env!("CARGO_BIN_EXE_mcp-sandbox-server"), "runners", "pull"]].concat();
    let output = Command::new(command[0])
        .args(&command[1..])
        .args(images)
        .env_clear()
        .env("TERM", "xterm")
        .envs(std::env::var("DOCKER_HOST").map(|host| ("DOCKER_HOST", host)))
        .envs([("MCP_API_TOKEN", TOKEN), ("FILE_SECRET", FILE_SECRET)])
        .env("SANDBOX_ROOT", folder.path())
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn runners_are_fetched_listed_and_refused_with_a_reason() {
    let mut blobs = Blobs::new();
    let unique = uuid::Uuid::now_v7().simple().to_string();
    // A language of its own, so that no server on this engine offers another one.
    let labels = json!({"sandbox.runner": "true", "sandbox.language": "pulled-test", "sandbox.version": unique});
    add(&mut blobs, "latest", &labels);
    add(&mut blobs, "seen", &labels);
    add(&mut blobs, "other", &json!({"unmarked": unique}));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("an address");
    let registry = listener.local_addr().expect("an address");
    let routes = Router::new()
        .route("/v2/", get(|| async { "{}" }))
        .route("/v2/{name}/{kind}/{reference}", get(fetch))
        .with_state(Arc::new(blobs));
    tokio::spawn(async move { axum::serve(listener, routes).await });
    let image = |tag: &str| format!("{registry}/test-{unique}{tag}");
    let fetched = pull(&[image("")]).await;
    let seen = pull_by(&["/usr/bin/python3", "-c", IN_TERMINAL], &[image(":seen")]).await;
    let unmarked = pull(&[image(":other")]).await;
    let missing = pull(&[image(":missing")]).await;
    for tag in [":latest", ":seen", ":other"] {
        docker()
            .await
            .remove_image(&image(tag), None::<bollard::query_parameters::RemoveImageOptions>, None)
            .await
            .expect("removed");
    }
    let (is_whole, stdout, stderr) = fetched;
    assert!(is_whole && stdout == format!("pulled-test\t{unique}\t{}\n", image(":latest")), "{stdout} {stderr}");
    assert!(!stderr.contains(DRAWN), "{stderr:?}");
    let (is_whole, terminal, stderr) = seen;
    assert!(is_whole && terminal.contains(&format!("{} █", image(":seen"))), "{terminal:?} {stderr}");
    let (drawn, listed) = terminal.rsplit_once("\u{1b}[2K").unwrap_or_else(|| panic!("a bar is removed: {terminal:?}"));
    assert!(drawn.contains(" B/") && !listed.contains(" B/"), "{terminal:?}");
    assert!(listed.ends_with(&format!("pulled-test\t{unique}\t{}\r\n", image(":seen"))), "{listed:?}");
    let (is_whole, stdout, _) = unmarked;
    assert!(!is_whole && stdout.starts_with("(refused)") && stdout.contains("sandbox.runner=true"), "{stdout}");
    let (is_whole, stdout, stderr) = missing;
    assert!(!is_whole && stdout.is_empty() && stderr.contains(&image(":missing")), "{stdout} {stderr}");
}
