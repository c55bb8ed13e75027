//! A server in this process, asked over HTTP.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use mcp_sandbox_server::{
    app::{App, StartError},
    config::{self, Config, Sources},
    ports::runner::{Catalog, Runner},
    services::standby::Standbys,
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, time::interval};
use tokio_util::sync::CancellationToken;

use crate::programs::Program;

const TOKEN: &str = "0123456789abcdef-of-the-bench";

/// Looks in a row that find nothing moving, 10 ms apart.
const QUIET_TICKS: u32 = 30;

/// A server at work.
pub struct Server {
    url: String,
    http: reqwest::Client,
    standbys: Standbys,
    catalog: Arc<Catalog>,
    /// Its settings.
    pub config: Config,
    shutdown: CancellationToken,
    serving: tokio::task::JoinHandle<Result<(), StartError>>,
}

impl Server {
    /// One with these settings.
    pub async fn start(root: PathBuf, more: &[(&str, &str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let mut environment: Vec<(String, String)> = [
            ("MCP_API_TOKEN", TOKEN),
            ("FILE_SECRET", "fedcba9876543210-of-the-bench"),
            ("SANDBOX_ROOT", root.to_str().expect("text")),
            ("PUBLIC_BASE_URL", &url),
            ("SANDBOX_SERVER__SHUTDOWN_GRACE_MS", "0"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec();
        environment.extend(std::env::var("DOCKER_HOST").ok().map(|host| ("DOCKER_HOST".to_owned(), host)));
        environment.extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let config = config::load(&Sources::environment_only(environment)).expect("settings");
        let app = App::build(&config).await.expect("the engine and the runner images: run ./build.sh");
        let (standbys, catalog) = (app.parts.shared.standbys.clone(), Arc::clone(&app.parts.shared.catalog));
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn(app.serve(listener, shutdown.clone()));
        Self { url: url + "/mcp", http: reqwest::Client::new(), standbys, catalog, config, shutdown, serving }
    }

    /// Runs a program by one call; how long the call took.
    pub async fn run(&self, conversation: &str, program: &Program) -> Duration {
        Caller { url: &self.url, http: self.http.clone() }.run(conversation, program).await
    }

    /// The same server over a connection that is not there yet.
    pub fn reconnected(&self) -> Caller<'_> {
        Caller { url: &self.url, http: reqwest::Client::new() }
    }

    /// Calls a tool; how long that took.
    async fn call(&self, tool: &str, arguments: Value) -> Duration {
        Caller { url: &self.url, http: self.http.clone() }.call(tool, arguments).await
    }

    /// Runs a cell of the conversation's session, which is opened where there is none.
    pub async fn cell(&self, conversation: &str, code: &str) -> Duration {
        self.call("sandbox_run_cell", json!({"conversationId": conversation, "code": code})).await
    }

    /// Ends the conversation's session.
    pub async fn reset(&self, conversation: &str) {
        self.call("sandbox_reset_session", json!({"conversationId": conversation})).await;
    }

    /// The runner of a program.
    pub fn runner(&self, program: &Program) -> Runner {
        self.catalog.find(&program.language.parse().expect("a language")).expect("a runner image: run ./build.sh")
    }

    /// Waits, untimed, until the standbys of a quiet minute are there and nothing has moved for a while: a sandbox that
    /// is being started or destroyed for the run before would be measured with the next.
    pub async fn settle(&self, program: &Program, wanted: usize) {
        let image = self.runner(program).image;
        let mut ticks = interval(Duration::from_millis(10));
        let mut quiet = 0;
        while quiet < QUIET_TICKS {
            ticks.tick().await;
            let ready = self.standbys.standing_by(&image) >= wanted && self.standbys.loading() == 0;
            quiet = if ready { quiet + 1 } else { 0 };
        }
    }

    /// Takes it down.
    pub async fn stop(self) {
        self.shutdown.cancel();
        self.serving.await.expect("the server ends well").expect("it served");
    }
}

/// A client of the server.
pub struct Caller<'a> {
    url: &'a str,
    http: reqwest::Client,
}

impl Caller<'_> {
    /// Runs a program by one call; how long the call took.
    pub async fn run(&self, conversation: &str, program: &Program) -> Duration {
        let arguments = json!({"conversationId": conversation, "language": program.language, "code": program.code});
        self.call("sandbox_run_code", arguments).await
    }

    async fn call(&self, tool: &str, arguments: Value) -> Duration {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                          "params": {"name": tool, "arguments": arguments}});
        let begun = Instant::now();
        let response = self.http.post(self.url).bearer_auth(TOKEN).json(&call).send().await.expect("an answer");
        let answer: Value = response.json().await.expect("JSON");
        let time = begun.elapsed();
        assert_eq!(answer["result"]["isError"], false, "{answer}");
        time
    }
}
