//! The examples of the API's page run as they are printed.

use std::path::Path;

use reqwest::{Client, Method};
use serde_json::{Value, json};

use crate::{
    packages::index::Index,
    sign_in::Visitor,
    skills::{skill_md, zipped},
    support::{
        FakeServer, Server,
        browser::Browser,
        issuer::{Issuer, Key},
        server::TOKEN,
        until,
    },
    tools::upstream::{Upstream, tool},
};

/// What real programs are needed for, and some of it also skills, an index of packages or a tool server.
const NEEDS_RUNNERS: [&str; 8] = [
    "/stdin",
    "/modules/",
    "/v1/skills",
    "/v1/check",
    "/v1/browse",
    "/demo/packages",
    "/list_issues/",
    "/v1/approvals/$",
];
/// What a subject of another issuer is needed for.
const NEEDS_ISSUER: [&str; 1] = ["/connections/"];

/// A server and a folder in which the examples run.
struct Place<'a> {
    http: &'a Client,
    url: &'a str,
    folder: &'a Path,
}

impl Place<'_> {
    async fn send(&self, method: Method, path: &str, body: Value) -> Value {
        let request = self.http.request(method, format!("{}{path}", self.url)).bearer_auth(TOKEN).json(&body);
        let answer = request.send().await.expect("an answer");
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
        answer.json().await.unwrap_or_default()
    }

    /// The id of the first item of a list, which may have to come yet.
    async fn first(&self, path: &str, list: &str) -> String {
        let id = async || {
            let request = self.http.get(format!("{}{path}", self.url)).bearer_auth(TOKEN);
            let answer: Value = request.send().await.expect("an answer").json().await.expect("JSON");
            answer[list][0]["id"].clone()
        };
        until(path, async || id().await.is_string()).await;
        id().await.as_str().expect("an id").to_owned()
    }

    /// Makes what an example is about, and runs it. `run` is under way meanwhile.
    async fn run(&self, example: &str, run: Value) {
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        header.set_mode(0o644);
        archive.append_data(&mut header, "x", &b""[..]).expect("an entry");
        std::fs::write(self.folder.join("archive.tar"), archive.into_inner().expect("an archive")).expect("written");
        self.send(Method::PUT, "/v1/conversations/demo/files/hello.txt", json!("Hello")).await;
        let run = self.send(Method::POST, "/v1/runs", run).await;
        let session = self.send(Method::POST, "/v1/sessions", json!({"conversationId": "demo"})).await;
        let token = self.send(Method::POST, "/v1/tokens", json!({"name": "a"})).await;
        let id = |of: &Value, name: &str| of[name].as_str().unwrap_or_else(|| panic!("{of}")).to_owned();
        let mut ids = vec![
            ("TOKEN_ID", id(&token, "id")),
            ("RUN_ID", id(&run, "runId")),
            ("SESSION_ID", id(&session, "sessionId")),
        ];
        for (name, path, list) in [
            ("APPROVAL_ID", "/v1/approvals?open=true", "approvals"),
            ("CONNECTION_ID", "/v1/connections", "connections"),
        ] {
            if example.contains(name) {
                ids.push((name, self.first(path, list).await));
            }
        }
        let output = tokio::process::Command::new("bash")
            .args(["-c", &format!("curl() {{ command curl -sSf -m 60 \"$@\"; }}\n{example}")])
            .current_dir(self.folder)
            .env("MCP_API_TOKEN", TOKEN)
            .envs(ids)
            .output();
        let output = output.await.expect("a shell");
        assert!(output.status.success(), "{example}\n{}", String::from_utf8_lossy(&output.stderr));
        self.send(Method::POST, &format!("/v1/runs/{}/cancel", id(&run, "runId")), json!({})).await;
    }
}

/// The page of the API, filled.
pub async fn page(url: &str) -> Browser {
    let browser = Browser::at(&format!("{url}/docs")).await;
    until("it is filled", async || {
        browser.script("return document.querySelector('[data-testid=docs]').ariaBusy").await == "false"
    })
    .await;
    browser
}

/// The examples on the page.
async fn printed(browser: &Browser) -> Vec<String> {
    let printed =
        browser.script("return [...document.querySelectorAll('section.card pre code')].map(e => e.textContent)");
    serde_json::from_value(printed.await).expect("texts")
}

fn needs(example: &str, what: &[&str]) -> bool {
    what.iter().any(|part| example.contains(part))
}

/// Those that need nothing but the fake engine.
pub async fn run_on_fakes(server: &FakeServer, browser: &Browser) {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("http://{}", server.address);
    let place = Place { http: &server.http, url: &url, folder: folder.path() };
    for example in printed(browser).await {
        let (address, _) = example.split_once('\n').expect("an address and headers");
        assert!(!address.contains('{') && !example.contains(":\"\""), "nothing is left to fill in: {example}");
        if !needs(&example, &NEEDS_RUNNERS) && !needs(&example, &NEEDS_ISSUER) {
            let run = json!({"language": "python", "code": "print 1\nsleep 1s", "wait": 0});
            place.run(&example, run).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn examples_of_connections_run_as_printed() {
    let key = Key::new("first");
    let issuer = Issuer::start(&[&key]).await;
    let settings = [("SANDBOX_SIGN_IN__MODE", "issuer"), ("SANDBOX_SIGN_IN__ISSUER", &*issuer.url)];
    let server = FakeServer::with_kernel(&settings).await;
    let visitor = Visitor::of(&server).await;
    let token = key.sign(&issuer.claims(&format!("{}/mcp", visitor.base), &json!({})));
    assert_eq!(visitor.call(&json!(token)).await, 200);
    let folder = tempfile::tempdir().expect("a folder");
    let browser = page(&visitor.base).await;
    let examples = printed(&browser).await;
    browser.close().await;
    let place = Place { http: &server.http, url: &visitor.base, folder: folder.path() };
    let mut tried = 0;
    // It is ended, and then allowed again.
    for example in examples.iter().filter(|example| needs(example, &NEEDS_ISSUER)) {
        place.run(example, json!({"language": "python", "code": "print 1", "wait": 0})).await;
        tried += 1;
    }
    assert_eq!(tried, 2);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn examples_that_need_real_programs_run_as_printed() {
    let folder = tempfile::tempdir().expect("a folder");
    let skills = folder.path().join("skills");
    std::fs::create_dir(&skills).expect("a folder");
    let index = Index::start().await;
    let of_index = index.settings();
    let mut settings: Vec<_> = of_index.iter().map(|(name, value)| (*name, value.as_str())).collect();
    settings.push(("SANDBOX_SKILLS__ROOT", skills.to_str().expect("text")));
    // The browser is offered where a network policy is; the example opens no address.
    settings.push(("SANDBOX_NETWORK__SET", "set.example"));
    let server = Server::with(&settings).await;
    let url = server.url("");
    let browser = page(&url).await;
    let place = Place { http: &server.http, url: &url, folder: folder.path() };
    let zip = zipped(&[("SKILL.md", skill_md("my-skill", "A skill.").as_bytes())]);
    std::fs::write(folder.path().join("my-skill.zip"), &zip).expect("written");
    let examples = printed(&browser).await;
    browser.close().await;
    let upstream =
        Upstream::start(json!([tool("list_issues"), {"name": "send", "inputSchema": {"type": "object"}}])).await;
    place.send(Method::PUT, "/v1/tool-servers/github", json!({"server": {"url": upstream.url}})).await;
    let mut tried = 0;
    for example in examples.iter().filter(|example| needs(example, &NEEDS_RUNNERS)) {
        // One of them deletes it.
        let put = server.http.put(server.url("/v1/skills/my-skill")).bearer_auth(TOKEN);
        let put = put.header("content-type", "application/zip").body(zip.clone()).send().await.expect("an answer");
        assert!(put.status().is_success(), "{}", put.status());
        let asks = example.contains("/v1/approvals/$");
        let code = if asks {
            "import mcptools\nmcptools.call('github', 'send')"
        } else {
            "import sys\nprint(sys.stdin.read())"
        };
        place.run(example, json!({"language": "python", "code": code, "stdinOpen": true, "wait": 0})).await;
        tried += 1;
    }
    assert!(tried > NEEDS_RUNNERS.len(), "{tried} examples");
    server.stop().await;
}
