//! An engine of another machine: by TLS with certificates on both sides or by SSH, and without folders of this one.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Stdio, sync::Arc};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, copy_bidirectional},
    net::{TcpListener, UnixStream},
    process::Command,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
        server::WebPkiClientVerifier,
    },
};

use crate::{
    mcp_clients::{root, tool},
    support::{cable::Cable, engines::docker_host, process::Process, server::TOKEN, sse::Events},
};

/// Writes what a client of the engine needs to a folder; the other side's settings.
fn certificates(folder: &Path) -> ServerConfig {
    let key = KeyPair::generate().expect("a key");
    let mut authority = CertificateParams::new(Vec::new()).expect("parameters");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = authority.self_signed(&key).expect("a certificate");
    let issuer = Issuer::new(authority, key);
    let signed = |names: &[&str]| {
        let key = KeyPair::generate().expect("a key");
        let names = names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let certificate = CertificateParams::new(names).expect("parameters").signed_by(&key, &issuer);
        (certificate.expect("a certificate"), key)
    };
    let (client, client_key) = signed(&[]);
    for (name, pem) in [("ca", root.pem()), ("cert", client.pem()), ("key", client_key.serialize_pem())] {
        fs::write(folder.join(name).with_extension("pem"), pem).expect("a file");
    }
    let (server, server_key) = signed(&["127.0.0.1"]);
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(root)).expect("an authority");
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let key = PrivateKeyDer::from_pem_slice(server_key.serialize_pem().as_bytes()).expect("a key");
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(clients.build().expect("a verifier"))
        .with_single_cert(vec![CertificateDer::from(server)], key)
        .expect("settings")
}

/// The engine behind TLS; its address.
async fn listen(settings: ServerConfig) -> String {
    let acceptor = TlsAcceptor::from(Arc::new(settings));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let socket = docker_host().strip_prefix("unix://").expect("a socket").to_owned();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, socket) = (acceptor.clone(), socket.clone());
            tokio::spawn(async move {
                let mut outer = acceptor.accept(stream).await?;
                let mut inner = UnixStream::connect(socket).await?;
                copy_bidirectional(&mut outer, &mut inner).await
            });
        }
    });
    format!("tcp://{address}")
}

async fn ask(server: &Process, method: Method, path: &str, body: Option<Value>) -> reqwest::Response {
    let request = server.http.request(method, server.url(path)).bearer_auth(TOKEN);
    let request = if let Some(body) = body { request.json(&body) } else { request };
    request.send().await.expect("an answer")
}

/// Runs two programs by an engine that has none of this machine's folders.
async fn runs_with_files(settings: &[(&str, &str)]) {
    let server = Process::start(&[settings, &[("SANDBOX_ENGINE__FILES", "streamed")]].concat()).await;
    let body = json!({"conversationId": "c", "language": "bash", "code": "echo far > a; head -c 5M /dev/zero > b"});
    let run: Value = ask(&server, Method::POST, "/v1/runs", Some(body)).await.json().await.expect("JSON");
    assert_eq!(run["outcome"]["ended"], "exited", "{run}");
    assert_eq!(fs::read_to_string(server.root().join("c/files/a")).expect("a file"), "far\n");
    let body = json!({"conversationId": "c", "language": "bash", "code": "cat a; stat -c %s b"});
    let run: Value = ask(&server, Method::POST, "/v1/runs", Some(body)).await.json().await.expect("JSON");
    assert_eq!(run["result"]["stdout"], "far\n5242880\n", "{run}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_behind_tls_runs_programs_with_files_of_this_machine() {
    let folder = tempfile::tempdir().expect("a folder");
    let host = listen(certificates(folder.path())).await;
    let path = folder.path().to_str().expect("text");
    runs_with_files(&[("DOCKER_HOST", &host), ("DOCKER_TLS_VERIFY", "1"), ("DOCKER_CERT_PATH", path)]).await;
}

/// Every connection to the engine breaks in the middle of a program, and new ones until its end is told.
#[tokio::test(flavor = "multi_thread")]
async fn run_whose_engine_vanishes_is_lost_and_the_next_one_runs_when_it_is_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let host = listen(certificates(folder.path())).await;
    let engine = host.strip_prefix("tcp://").and_then(|address| address.parse().ok()).expect("an address");
    let cable = Cable::to(engine).await;
    let (host, path) = (format!("tcp://{}", cable.address), folder.path().to_str().expect("text"));
    let server = Process::start(&[
        ("DOCKER_HOST", &host),
        ("DOCKER_TLS_VERIFY", "1"),
        ("DOCKER_CERT_PATH", path),
        ("SANDBOX_ENGINE__FILES", "streamed"),
        ("SANDBOX_LIMITS__WALL_MS", "150000"),
    ])
    .await;
    let code = "echo lost > a; echo there; sleep 140";
    let body = json!({"conversationId": "c", "language": "bash", "code": code, "wait": 0});
    let run: Value = ask(&server, Method::POST, "/v1/runs", Some(body)).await.json().await.expect("JSON");
    let run = run["runId"].as_str().unwrap_or_else(|| panic!("{run}"));
    let mut events = Events::open(&server.http, &server.url(""), run).await;
    events.printed("there").await;
    cable.pull();
    events.last().await;
    let told: Value = ask(&server, Method::GET, &format!("/v1/runs/{run}"), None).await.json().await.expect("JSON");
    assert!(told.to_string().contains("engine_lost"), "{told}");
    cable.plug();
    server.ready().await;
    let body = json!({"conversationId": "c", "language": "bash", "code": "cat a 2>&1; echo again"});
    let run: Value = ask(&server, Method::POST, "/v1/runs", Some(body)).await.json().await.expect("JSON");
    let stdout = run["result"]["stdout"].as_str().unwrap_or_else(|| panic!("{run}"));
    assert!(stdout.ends_with("again\n") && !stdout.contains("lost"), "its changes are lost: {run}");
    server.stop().await;
}

/// OpenSSH's client, and a server that knows the one command.
#[tokio::test(flavor = "multi_thread")]
async fn engine_behind_ssh_runs_programs_with_files_of_this_machine() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = docker_host().strip_prefix("unix://").expect("a socket").to_owned();
    let mut machine = Command::new(tool("ssh/bin/python"));
    machine.arg("ssh_engine.py").arg(folder.path()).arg(socket);
    machine.current_dir(root().join("tests/clients")).stdout(Stdio::piped()).kill_on_drop(true);
    let mut machine = machine.spawn().expect("it starts");
    let mut lines = BufReader::new(machine.stdout.take().expect("its output")).lines();
    assert_eq!(lines.next_line().await.expect("a line").as_deref(), Some("ready"));
    // The settings of the user who runs the tests stay as they are: `ssh` finds none but these.
    let (ssh, path) = (folder.path().join("ssh"), std::env::var("PATH").expect("a path"));
    let real = std::env::split_paths(&path).map(|place| place.join("ssh")).find(|ssh| ssh.is_file());
    let real = real.expect("OpenSSH's client: run ./test.sh, which installs it");
    let config = folder.path().join("config");
    let script = format!("#!/bin/sh\nexec {} -F {} \"$@\"\n", real.display(), config.display());
    fs::write(&ssh, script).expect("written");
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).expect("rights");
    let path = format!("{}:{path}", folder.path().display());
    runs_with_files(&[("DOCKER_HOST", "ssh://engine"), ("PATH", &path)]).await;
    machine.kill().await.expect("it ends");
}
