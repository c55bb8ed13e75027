//! A whole server on the fake engine, in this process, on a port of its own: for what needs no real program.
//!
//! Programs are scripts of the fake engine (`print x`, `write name text`, `hang`, …). [`FakeServer::stop`] asserts that
//! nothing is left.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use mcp_sandbox_server::{
    adapters::storage::DiskStorage,
    api::mcp::McpParts,
    app::{App, StartError},
    domain::users::RunnerUsers,
    ports::{engine::Engine, storage::Usage},
    services::{
        containers::Containers, isolation_check::Isolation, janitor::Janitor, kernels::Kernels, retention::Retention,
        sessions::Sessions, shared_parts::SharedParts,
    },
};
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::{
    postgres::Postgres,
    server::{TOKEN, settings},
    until,
};
use crate::fake::FakeEngine;

/// As a setting: the address of the server.
pub const OWN_ADDRESS: &str = "its own address";

/// What clients of either era say they take.
pub const BOTH: &str = "application/json, text/event-stream";

pub struct FakeServer {
    pub address: SocketAddr,
    pub root: PathBuf,
    pub engine: FakeEngine,
    pub janitor: Janitor,
    pub shared: SharedParts,
    pub mcp: McpParts,
    pub sessions: Sessions,
    pub kernels: Kernels,
    pub containers: Containers,
    pub retention: Arc<Retention>,
    pub http: Client,
    shutdown: CancellationToken,
    serving: JoinHandle<Result<(), StartError>>,
    stopped: bool,
    /// Where its root is, if that is its own.
    folder: Option<TempDir>,
    /// Ends with the server.
    cluster: Option<Postgres>,
}

/// Where the database of a server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// In its root.
    Sqlite,
    /// In a cluster of its own.
    Postgres,
}

/// Makes of each body a test for each kind of database.
macro_rules! on_each_database {
    ($($name:ident)+) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name($crate::support::fake_server::Kind::Sqlite).await;
            })+
        }

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name($crate::support::fake_server::Kind::Postgres).await;
            })+
        }
    };
}
pub(crate) use on_each_database;

impl FakeServer {
    pub async fn start() -> Self {
        Self::with(&[]).await
    }

    /// A server on a kind of database.
    pub async fn by(kind: Kind, more: &[(&str, &str)]) -> Self {
        let engine = FakeEngine::default();
        engine.add_kernel("python");
        let Kind::Postgres = kind else { return Self::on(engine, more).await };
        let cluster = Postgres::start().await;
        let url = cluster.url();
        let mut server = Self::on(engine, &[more, &[("DATABASE_URL", &url)]].concat()).await;
        server.cluster = Some(cluster);
        server
    }

    /// A server with some settings of its own.
    pub async fn with(more: &[(&str, &str)]) -> Self {
        Self::on(FakeEngine::default(), more).await
    }

    /// A server whose Python offers sessions.
    pub async fn with_kernel(more: &[(&str, &str)]) -> Self {
        Self::with_kernels(&["python"], more).await
    }

    /// A server with these languages, which offer sessions.
    pub async fn with_kernels(languages: &[&str], more: &[(&str, &str)]) -> Self {
        let engine = FakeEngine::default();
        for language in languages {
            engine.add_kernel(language);
        }
        Self::on(engine, more).await
    }

    /// A server whose browser may reach a host. Its cells are scripts, so no call of the browser succeeds.
    pub async fn with_browser() -> Self {
        Self::with_kernels(&["browser"], &[("SANDBOX_NETWORK__SET", "set.example")]).await
    }

    /// A server that installs packages for its Python, from an index that does not answer.
    pub async fn with_packages() -> Self {
        let engine = FakeEngine::default();
        engine.add_installer("python");
        Self::on(engine, &[("SANDBOX_PACKAGES__PYTHON_INDEX", "https://packages.example/simple")]).await
    }

    async fn on(engine: FakeEngine, more: &[(&str, &str)]) -> Self {
        let folder = tempfile::Builder::new().prefix("sandbox-it-").tempdir().expect("a folder");
        let mut server = Self::serve(engine, folder.path().join("root"), more).await;
        server.folder = Some(folder);
        server
    }

    /// A server on the root of an earlier one, which has stopped; its Python offers sessions.
    pub async fn again(root: &Path, more: &[(&str, &str)]) -> Self {
        let engine = FakeEngine::default();
        engine.add_kernel("python");
        Self::serve(engine, root.to_owned(), more).await
    }

    async fn serve(engine: FakeEngine, root: PathBuf, more: &[(&str, &str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let base = format!("http://{address}");
        // Tests count sandboxes; one that is about standbys says how many it wants.
        let mut pairs = vec![("PUBLIC_BASE_URL", base.as_str()), ("SANDBOX_STANDBY__TOTAL_MAX", "0")];
        // Where others reach it is known only now.
        pairs.extend(more.iter().map(|&(name, value)| (name, if value == OWN_ADDRESS { &*base } else { value })));
        let config = settings(&root, &pairs);
        if engine.runners().await.expect("the fake engine").is_empty() {
            engine.add_runner("python");
        }
        engine.add_runner("bash");
        let users = RunnerUsers::one(rustix::process::getuid().as_raw());
        let mut store = DiskStorage::at(&root, users).expect("a root");
        if config.quota.hard {
            let most = Usage { bytes: config.quota.bytes_max, entries: config.quota.entries_max.into() };
            store = store.with_own_disks(&most).expect("disks: run these tests as root");
        }
        let store = Arc::new(store);
        let probe = engine.probe().await.expect("the fake engine");
        let app = App::assemble(&config, store, Arc::new(engine.clone()), probe).await.expect("a server");
        // The fake engine has no kernel that could tell anything; a test of the self-test has a server of its own.
        app.parts.shared.isolation.set(Isolation::Verified { notes: Vec::new(), rejected: Vec::new() });
        let (shared, mcp, retention) =
            (app.parts.shared.clone(), app.parts.mcp.clone(), Arc::clone(&app.parts.retention));
        let (sessions, kernels) = (app.parts.api.sessions.clone(), app.parts.api.kernels.clone());
        let containers = app.parts.api.containers.clone();
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn(app.serve(listener, shutdown.clone()));
        let http = super::http::builder().timeout(Duration::from_mins(1)).build().expect("a client");
        Self {
            address,
            root,
            engine,
            janitor: shared.sandboxes.janitor.clone(),
            shared,
            mcp,
            sessions,
            kernels,
            containers,
            retention,
            http,
            shutdown,
            serving,
            stopped: false,
            folder: None,
            cluster: None,
        }
    }

    /// Waits until so many sandboxes are there and were started completely.
    pub async fn until_live(&self, count: usize) {
        let is_done = async || self.engine.live().len() == count && self.janitor.unwanted() == 0;
        until("sandboxes live", is_done).await;
    }

    /// Makes a conversation look as if it was used so long before the server began.
    pub fn used_ago(&self, conversation: &str, ago: Duration) {
        let marker = std::fs::File::open(self.root.join(conversation).join(".mark")).expect("a marker");
        let began = std::fs::metadata(self.root.join(".instance")).and_then(|made| made.modified());
        marker.set_modified(began.expect("when it began") - ago).expect("a time");
    }

    /// A POST to `/mcp` with the token and JSON's content type, for results that programs read.
    pub fn post(&self, body: impl Into<reqwest::Body>) -> RequestBuilder {
        self.post_to("?structured=on", body)
    }

    /// The same with another query.
    pub fn post_to(&self, query: &str, body: impl Into<reqwest::Body>) -> RequestBuilder {
        let url = format!("http://{}/mcp{query}", self.address);
        self.http.post(url).bearer_auth(TOKEN).header("content-type", "application/json").body(body)
    }

    /// The bare call.
    pub async fn rpc(&self, method: &str, params: Value) -> Value {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let response = self.post(call.to_string()).send().await.expect("an answer");
        response.json().await.expect("JSON")
    }

    /// The result of a bare tool call.
    pub async fn call(&self, tool: &str, arguments: Value) -> Value {
        let answer = self.rpc("tools/call", json!({"name": tool, "arguments": arguments})).await;
        assert!(answer.get("error").is_none(), "{answer}");
        answer["result"].clone()
    }

    pub async fn run(&self, conversation: &str, code: &str) -> Value {
        let arguments = json!({"conversationId": conversation, "language": "python", "code": code});
        self.call("sandbox.run_code", arguments).await
    }

    /// Opens a session of MCP as clients with a handshake do; returns its id.
    pub async fn open_session(&self) -> String {
        let opening = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}});
        let response = self.post(opening.to_string()).header("accept", BOTH).send().await.expect("an answer");
        let id = response.headers()["mcp-session-id"].to_str().expect("text").to_owned();
        let opened = messages(response).await;
        assert_eq!(opened[0]["result"]["serverInfo"]["name"], "mcp-sandbox-server");
        assert!(opened[0]["result"]["capabilities"]["tools"].is_object());
        let ready = self.in_session(&id, &json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        assert_eq!(ready.send().await.expect("an answer").status(), 202);
        id
    }

    pub fn in_session(&self, session: &str, message: &Value) -> RequestBuilder {
        let request = self.post(message.to_string()).header("accept", BOTH).header("mcp-session-id", session);
        request.header("mcp-protocol-version", "2025-06-18")
    }

    /// Takes the server down and asserts that nothing is left.
    pub async fn stop(mut self) {
        self.stopped = true;
        self.shutdown.cancel();
        (&mut self.serving).await.expect("the server ends well").expect("it served");
        assert_eq!(self.janitor.leased(), 0, "a lease is left");
        assert_eq!(self.engine.live(), [], "a sandbox is left");
        assert_eq!(self.engine.violations(), [""; 0]);
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.shutdown.cancel();
        drop(self.folder.take());
        assert!(self.stopped || std::thread::panicking(), "a test ends its server with stop()");
    }
}

/// The messages of an event stream, in order.
pub async fn messages(response: Response) -> Vec<Value> {
    let kind = response.headers()["content-type"].to_str().expect("text").to_owned();
    assert!(kind.starts_with("text/event-stream"), "{kind}");
    let text = response.text().await.expect("a stream that ends");
    let data = text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim);
    data.filter(|data| !data.is_empty()).map(|data| serde_json::from_str(data).expect("JSON")).collect()
}
