//! A whole server on real Docker, in this process, on a port of its own, with a root of its own. With
//! `TEST_ENGINE=kubernetes` its sandboxes are on the cluster of [`super::cluster`], and its root is in a claim of its
//! own.
//!
//! Every test is a leak test: [`Server::stop`] asserts that no container, run or lease is left, and a server that is
//! dropped without it fails the test.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use mcp_sandbox_server::{
    app::{self, App, StartError},
    config::{self, Config, Sources, telemetry},
    domain::id::{InstanceId, SandboxId},
    ports::{engine::Engine, runner::Catalog},
    services::{isolation_check::Isolation, janitor::Janitor, runs::Runs, standby::Standbys},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::{
    cluster::{OwnClaim, of_servers},
    until,
};

pub const TOKEN: &str = "0123456789abcdef-of-the-tests";
pub const FILE_SECRET: &str = "fedcba9876543210-of-the-tests";

/// What to do when the machine is not prepared: tests that need the engine fail, they never skip.
const PREPARE: &str = "these tests need a container engine and the runner images: run ./test.sh, which prepares both";

pub struct Server {
    pub address: SocketAddr,
    pub root: PathBuf,
    pub engine: Arc<dyn Engine>,
    pub catalog: Arc<Catalog>,
    pub janitor: Janitor,
    pub standbys: Standbys,
    pub runs: Runs,
    pub http: reqwest::Client,
    instance: InstanceId,
    shutdown: CancellationToken,
    serving: JoinHandle<Result<(), StartError>>,
    stopped: bool,
    claim: Option<OwnClaim>,
    _folder: TempDir,
}

/// The settings of a test server; `more` wins. With the name `--config` it is a file.
pub fn settings(root: &std::path::Path, more: &[(&str, &str)]) -> Config {
    let mut environment = vec![
        ("MCP_API_TOKEN".to_owned(), TOKEN.to_owned()),
        ("FILE_SECRET".to_owned(), FILE_SECRET.to_owned()),
        ("SANDBOX_ROOT".to_owned(), root.display().to_string()),
        ("MCP_HTTP_ADDR".to_owned(), "127.0.0.1:0".to_owned()),
        ("SANDBOX_SERVER__SHUTDOWN_GRACE_MS".to_owned(), "0".to_owned()),
    ];
    environment.extend(std::env::var("DOCKER_HOST").ok().map(|host| ("DOCKER_HOST".to_owned(), host)));
    environment.extend(of_servers());
    // The tests of a step of test.sh, once more with files that travel.
    environment.extend(std::env::var("TEST_FILES").ok().map(|files| ("SANDBOX_ENGINE__FILES".to_owned(), files)));
    environment.extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let (files, environment): (Vec<_>, Vec<_>) = environment.into_iter().partition(|(name, _)| name == "--config");
    let mut sources = Sources::environment_only(environment);
    sources.file = files.into_iter().next().map(|(_, path)| path.into()).or(sources.file);
    config::load(&sources).expect("the test's settings")
}

impl Server {
    pub async fn start() -> Self {
        Self::with(&[]).await
    }

    /// A server with some settings of its own.
    pub async fn with(more: &[(&str, &str)]) -> Self {
        Self::in_folder(&std::env::temp_dir(), more).await
    }

    /// A server whose root is somewhere below a folder.
    pub async fn in_folder(folder: &std::path::Path, more: &[(&str, &str)]) -> Self {
        drop(telemetry::init(&std::env::var("TEST_LOG").unwrap_or_else(|_| "error".to_owned()), false));
        let folder = tempfile::Builder::new().prefix("sandbox-it-").tempdir_in(folder).expect("a folder");
        let claim = OwnClaim::of_server().await;
        // The claim is mounted as a whole.
        let root = claim.as_ref().map_or_else(|| folder.path().join("root"), |claim| claim.folder.path().to_owned());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let base = format!("http://{address}");
        let mut pairs = vec![("PUBLIC_BASE_URL", base.as_str())];
        pairs.extend(claim.iter().map(|claim| ("SANDBOX_ENGINE__CLAIM", claim.name.as_str())));
        pairs.extend(more);
        let config = settings(&root, &pairs);
        let (engine, _) = app::engine(&config).await.unwrap_or_else(|error| panic!("{error}: {PREPARE}"));
        let app = App::build(&config).await.unwrap_or_else(|error| panic!("{error}: {PREPARE}"));
        let shared = &app.parts.shared;
        let (catalog, standbys) = (Arc::clone(&shared.catalog), shared.standbys.clone());
        let (janitor, instance) = (shared.sandboxes.janitor.clone(), shared.sandboxes.instance);
        let runs = app.parts.api.runs.clone();
        // Tests count sandboxes: that of the self-test is gone before they begin.
        let isolation = &shared.isolation;
        assert!(matches!(isolation.settled().await, Isolation::Verified { .. }), "{:?}", isolation.now());
        janitor.idle().await;
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn(app.serve(listener, shutdown.clone()));
        let http = super::http::builder().timeout(Duration::from_mins(2)).build().expect("a client");
        Self {
            address,
            root,
            engine,
            catalog,
            janitor,
            standbys,
            runs,
            http,
            instance,
            shutdown,
            serving,
            stopped: false,
            claim,
            _folder: folder,
        }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The settings by which another process has its sandboxes where this server has them.
    pub fn engine_settings(&self) -> Vec<(String, String)> {
        let claim = self.claim.iter().map(|claim| ("SANDBOX_ENGINE__CLAIM".to_owned(), claim.name.clone()));
        of_servers().into_iter().chain(claim).collect()
    }

    /// The contract's bare call: no handshake, no `Accept`.
    pub async fn rpc(&self, tool: &str, arguments: Value) -> Value {
        let call = json!({"jsonrpc": "2.0", "id": "1", "method": "tools/call",
                          "params": {"name": tool, "arguments": arguments}});
        let response = self
            .http
            .post(self.url("/mcp?structured=on"))
            .bearer_auth(TOKEN)
            .json(&call)
            .send()
            .await
            .expect("an answer");
        assert_eq!(response.status(), 200);
        let answer: Value = response.json().await.expect("JSON");
        assert_eq!(answer["id"], "1");
        answer
    }

    /// The result of a tool call that is no JSON-RPC error.
    pub async fn call(&self, tool: &str, arguments: Value) -> Value {
        let answer = self.rpc(tool, arguments).await;
        assert!(answer.get("error").is_none(), "{answer}");
        answer["result"].clone()
    }

    /// Runs a program; the whole result.
    pub async fn run(&self, conversation: &str, language: &str, code: &str) -> Value {
        let arguments = json!({"conversationId": conversation, "language": language, "code": code});
        self.call("sandbox.run_code", arguments).await
    }

    /// Our containers on the engine, dead or alive.
    pub async fn containers(&self) -> usize {
        self.sandboxes().await.len()
    }

    /// Their ids.
    pub async fn sandboxes(&self) -> Vec<SandboxId> {
        let listed = self.engine.list().await.expect("a list");
        listed.iter().filter(|sandbox| sandbox.instance == self.instance).map(|sandbox| sandbox.id).collect()
    }

    /// Waits until what is unwanted is gone, and asserts that every remaining container is a standby or belongs to
    /// a run.
    pub async fn settled(&self) {
        // A lease may end between the two counts.
        until("no container is there without a lease", async || {
            self.janitor.idle().await;
            self.containers().await <= self.janitor.leased()
        })
        .await;
    }

    /// Takes the server down and asserts that nothing is left.
    pub async fn stop(mut self) {
        self.stopped = true;
        self.shutdown.cancel();
        (&mut self.serving).await.expect("the server ends well").expect("it served");
        assert_eq!(self.janitor.leased(), 0, "a lease is left");
        assert_eq!(self.containers().await, 0, "a container is left");
        if let Some(claim) = self.claim.take() {
            claim.remove().await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.cancel();
        assert!(self.stopped || std::thread::panicking(), "a test ends its server with stop()");
    }
}
