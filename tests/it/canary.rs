//! Secrets appear in no output: a server process logs at the most verbose level and uses recognisable secrets, and
//! everything it emits is collected and searched.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Stdio,
};

use http::{HeaderValue, header::ORIGIN};
use reqwest::{Method, RequestBuilder, redirect::Policy};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::{
    network::vault::Vault,
    sign_in::{ON, REDIRECT, VERIFIER, Visitor, answer},
    support::{collector::Collector, http::builder, until},
};

const TOKEN: &str = "canary-of-the-token-7d1f0c";
const SECRET: &str = "canary-of-the-secret-93ab44";
const OLD_SECRET: &str = "canary-of-the-old-secret-5e0b";
const TUNNEL: &str = "canary-of-the-tunnel-c2d8e1";
const COLLECTOR: &str = "canary-of-the-collector-88e2b7";
const VAULT: &str = "canary-of-the-vault-41c7d5";
/// What all six hold.
const CANARY: &str = "canary-of-the";

/// Prints what a program can find out about where it is.
const SNOOP: &str = "
import glob, os, requests, sys, time
for path in ('cut?9', 'headers?plain', 'gzip', 'endless-head'):
    url = 'https://' + sys.argv[1] + '/' + path
    answer = requests.get(url, auth=('me', os.environ['VAULT_TOKEN']), allow_redirects=False)
    print(answer.status_code, answer.headers, answer.text)
names = [name for kind in ('environ', 'cmdline', 'mountinfo') for name in glob.glob(f'/proc/*/{kind}')]
for name in names + ['/proc/cmdline']:
    try:
        print(name, open(name, 'rb').read())
    except OSError:
        pass
print(os.environ)
open('found.txt', 'w').write('x')
";

/// Everything that was seen, by where.
#[derive(Default)]
struct Seen(Vec<(String, String)>);

impl Seen {
    fn add(&mut self, place: impl Into<String>, text: impl Into<String>) {
        self.0.push((place.into(), text.into()));
    }

    /// The place must hold what it is known to hold, or nothing was searched.
    fn search(&self, needle: &str, holds: &[(&str, &str)]) {
        for (place, text) in &self.0 {
            assert!(!text.contains(needle), "{needle} is in {place}:\n{text}");
        }
        for (place, known) in holds {
            let found = self.0.iter().any(|(name, text)| name == place && text.contains(known));
            assert!(found, "{place} does not even hold {known}");
        }
    }
}

struct Process {
    child: Child,
    address: String,
    folder: TempDir,
    collector: Collector,
    vault: Vault,
    seen: Seen,
}

impl Process {
    async fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("sandbox-it-").tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name).display().to_string();
        let log = File::create(folder.path().join("log")).expect("a log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_mcp-sandbox-server"));
        command.arg("serve").current_dir(folder.path()).env_clear();
        command.envs(std::env::vars_os().filter(|(name, _)| name == "PATH" || name == "DOCKER_HOST"));
        command.envs([("MCP_API_TOKEN", TOKEN), ("TUNNEL_TOKEN", TUNNEL), ("MCP_HTTP_ADDR", "127.0.0.1:0")]);
        command.envs([("FILE_SECRET", format!("{SECRET},{OLD_SECRET}")), ("SANDBOX_ROOT", at("root"))]);
        command.envs([("SANDBOX_LOG__LEVEL", "trace"), ("SANDBOX_LOG__FORMAT", "json"), ON]);
        let collector = Collector::start().await;
        command.envs([
            ("SANDBOX_AUDIT__FILE", at("audit")),
            ("SANDBOX_TRACES__OTLP_ENDPOINT", collector.endpoint.clone()),
        ]);
        command.env("SANDBOX_TRACES__OTLP_HEADERS", format!("authorization={COLLECTOR}"));
        let vault = Vault::start(VAULT).await;
        let (host, roots) = (vault.good, vault.roots.path().display());
        let settings = format!(
            "network.vault = {{ hosts = ['{host}'], every_token = true }}\nsecrets.vault = {{ hosts = ['{host}'] }}\n\
             opened.ca_file = '{roots}'\n"
        );
        std::fs::write(folder.path().join("sandbox.toml"), settings).expect("written");
        command.env("SANDBOX_SECRETS__VAULT", VAULT);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).kill_on_drop(true).spawn();
        let child = child.expect("a server");
        let mut server = Self { child, address: String::new(), folder, collector, vault, seen: Seen::default() };
        let log = server.path("log");
        until("it serves", async || address(&log).is_some()).await;
        server.address = address(&log).expect("an address");
        server
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Sends a request and keeps all of the answer.
    async fn send(&mut self, place: &str, request: RequestBuilder) -> String {
        let answer = request.send().await.expect("an answer");
        let head = format!("{} {:?}\n", answer.status(), answer.headers());
        let body = answer.text().await.expect("a body");
        self.seen.add(place, format!("{head}{body}"));
        body
    }

    fn call(&self, method: Method, path: &str) -> RequestBuilder {
        crate::support::http::client().request(method, format!("http://{}{path}", self.address))
    }

    async fn run(&mut self, place: &str, code: &str) -> Value {
        let args = [self.vault.good.to_string()];
        let arguments = json!({"conversationId": "snoop", "language": "python", "code": code, "args": args});
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                          "params": {"name": "sandbox.run_code", "arguments": arguments}});
        let request = self.call(Method::POST, "/mcp?structured=on").bearer_auth(TOKEN).json(&call);
        serde_json::from_str(&self.send(place, request).await).expect("JSON")
    }

    /// What goes wrong, in every way that says why.
    async fn errors(&mut self) {
        let wrong = self.call(Method::POST, "/mcp").bearer_auth("a-wrong-token").body("{}");
        self.send("wrong token", wrong).await;
        for path in ["/v1/runs/run-x", "/v1/conversations/none/files/x", "/v1/runs?nonsense=1", "/nowhere"] {
            let request = self.call(Method::GET, path).bearer_auth(TOKEN);
            self.send(path, request).await;
        }
        let broken = self.call(Method::POST, "/v1/runs").bearer_auth(TOKEN).body("{\"code\": ");
        self.send("broken JSON", broken).await;
        let foreign = self.call(Method::GET, "/v1/runners").bearer_auth(TOKEN).header("host", "elsewhere.test");
        self.send("foreign host", foreign).await;
        let forged = self.call(Method::GET, "/files/snoop/found.txt?expires=99999999999&sig=AAAA");
        self.send("forged link", forged).await;
    }

    /// Signs a client in, and another that uses its code twice: what is secret of that.
    async fn sign_in(&self) -> Vec<String> {
        let http = builder().redirect(Policy::none()).build().expect("a client");
        let visitor = Visitor { base: format!("http://{}", self.address), http };
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let mut secrets = vec![VERIFIER.to_owned()];
        for is_replayed in [false, true] {
            let metadata = json!({"client_name": "Canary", "redirect_uris": [REDIRECT],
                "token_endpoint_auth_method": "client_secret_post"});
            let (status, client) = visitor.register(&metadata).await;
            assert_eq!(status, 201, "{client}");
            let (id, secret) = (text(&client["client_id"]), text(&client["client_secret"]));
            let page = visitor.consent(&visitor.request(&id, &[("resource", "")])).await;
            // Its address is that of PUBLIC_BASE_URL, which is not set.
            let origin = HeaderValue::from_static("http://localhost:8080");
            let decided = visitor.decision(&page, "allow", TOKEN).headers([(ORIGIN, origin)].into_iter().collect());
            let decided = decided.send().await.expect("an answer");
            assert_eq!(decided.status(), 303);
            let code = answer(&decided)["code"].clone();
            let with_secret = [("client_secret", &*secret)];
            let (status, first) = visitor.redeem(&id, &code, &with_secret).await;
            assert_eq!(status, 200, "{first}");
            let (status, second) = visitor.refresh(&id, &text(&first["refresh_token"]), &with_secret).await;
            assert_eq!(status, 200, "{second}");
            assert_eq!(visitor.call(&second["access_token"]).await, 200);
            if is_replayed {
                assert_eq!(visitor.redeem(&id, &code, &with_secret).await.0, 400);
                assert_eq!(visitor.call(&second["access_token"]).await, 401);
            }
            for tokens in [&first, &second] {
                secrets.extend([text(&tokens["access_token"]), text(&tokens["refresh_token"])]);
            }
            secrets.extend([code, secret, page.seal, page.cookie]);
        }
        secrets
    }

    /// The container of a program that runs, as the engine shows it to its clients.
    async fn inspect(&mut self) {
        let body =
            json!({"conversationId": "snoop", "language": "python", "code": "import time; time.sleep(600)", "wait": 0});
        let request = self.call(Method::POST, "/v1/runs").bearer_auth(TOKEN).json(&body);
        let run: Value = serde_json::from_str(&self.send("long run", request).await).expect("JSON");
        let root = self.path("root").display().to_string();
        let ours = async || {
            let ids = docker(&["ps", "-q", "--filter", "label=sandbox.managed=true"]).await;
            let inspected = docker(&[&["inspect"][..], &ids.split_whitespace().collect::<Vec<_>>()].concat()).await;
            // Other tests' sandboxes are on the same engine.
            let all: Vec<Value> = serde_json::from_str(&inspected).unwrap_or_default();
            all.into_iter().find(|container| container["HostConfig"]["Mounts"].to_string().contains(&root))
        };
        let mut container = None;
        until("its container is there", async || {
            container = ours().await;
            container.is_some()
        })
        .await;
        self.seen.add("inspect", container.expect("it is there").to_string());
        let path = format!("/v1/runs/{}/cancel", run["runId"].as_str().expect("an id"));
        let cancel = self.call(Method::POST, &path).bearer_auth(TOKEN);
        self.send("cancelled", cancel).await;
    }

    /// Ends it as an operator would, and keeps what it has written.
    async fn end(mut self) -> Seen {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw);
        rustix::process::kill_process(id.expect("it runs"), rustix::process::Signal::TERM).expect("terminated");
        assert!(self.child.wait().await.expect("it ends").success());
        for name in ["log", "audit"] {
            self.seen.add(name, std::fs::read_to_string(self.path(name)).expect(name));
        }
        for (headers, body) in self.collector.got() {
            assert_eq!(headers["authorization"], COLLECTOR);
            self.seen.add("traces", String::from_utf8_lossy(&body));
        }
        self.seen
    }
}

async fn docker(arguments: &[&str]) -> String {
    let output = Command::new("docker").args(arguments).output().await.expect("docker");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn address(log: &Path) -> Option<String> {
    let text = std::fs::read_to_string(log).ok()?;
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let serving = lines.map(|line| line["fields"].clone()).find(|fields| fields["message"] == "serving")?;
    serving["address"].as_str().map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_appear_in_no_log_answer_metric_container_or_program() {
    let mut server = Process::start().await;
    let first = server.run("program", SNOOP).await;
    let result = &first["result"]["structuredContent"];
    assert_eq!(result["outcome"]["ended"], "exited", "{first}");
    let link = result["files"][0]["url"].as_str().expect("a link").to_owned();
    let signature = link.split_once("sig=").expect("a signature").1.to_owned();
    let path = link.split_once("/files/").expect("a path").1;
    let download = server.call(Method::GET, &format!("/files/{path}"));
    assert_eq!(server.send("download", download).await, "x");
    for path in
        ["/", "/healthz", "/readyz", "/metrics", "/openapi.json", "/v1/runners", "/v1/runs", "/v1/conversations"]
    {
        let request = server.call(Method::GET, path).bearer_auth(TOKEN);
        server.send(path, request).await;
    }
    server.errors().await;
    server.inspect().await;
    let secrets = server.sign_in().await;
    let asked = server.vault.seen();
    let credentials = "authorization: Basic bWU6Y2FuYXJ5LW9mLXRoZS12YXVsdC00MWM3ZDU=";
    assert!(asked.len() == 4 && asked.iter().all(|request| request.contains(credentials)), "{asked:#?}");
    let seen = server.end().await;
    let known = [
        ("program", "HOME=/tmp"),
        ("inspect", "sandbox.instance"),
        ("/metrics", "sandbox_runs_total"),
        ("log", "\"level\":\"TRACE\""),
        ("log", "run ended"),
        ("audit", "program_sha256"),
        ("traces", "sandbox.outcome"),
        ("wrong token", "401"),
    ];
    seen.search(CANARY, &known);
    let written =
        Seen(seen.0.into_iter().filter(|(place, _)| ["log", "audit", "traces"].contains(&place.as_str())).collect());
    written.search(&signature, &[("log", "/files/snoop/found.txt")]);
    written.search("glob.glob", &[("audit", "snoop")]);
    for secret in secrets {
        written.search(&secret, &[("log", "\"step\":\"reused\""), ("audit", "reused")]);
    }
    let sent = Seen(written.0.iter().filter(|(place, _)| place == "traces").cloned().collect());
    for private in ["snoop", "found.txt"] {
        sent.search(private, &[("traces", "POST /mcp")]);
    }
    // A request's id and its run's are on the lines of the run.
    let log = &written.0.iter().find(|(place, _)| place == "log").expect("the log").1;
    let ended = log.lines().find(|line| line.contains("run ended") && line.contains("snoop")).expect("a line");
    let ended: Value = serde_json::from_str(ended).expect("JSON");
    let spans = ended["spans"].to_string();
    assert!(spans.contains("\"request\":\"req-") && spans.contains("\"run\":\"run-"), "{ended}");
}
