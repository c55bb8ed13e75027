//! The examples of the API's page run as they are printed.

use std::path::Path;

use reqwest::{Client, Method};
use serde_json::{Value, json};

use crate::{
    skills::{skill_md, zipped},
    support::{FakeServer, Server, browser::Browser, server::TOKEN, until},
};

/// What real programs or a folder of skills are needed for.
const NEEDS_RUNNERS: [&str; 4] = ["/stdin", "/modules/", "/v1/skills", "/v1/check"];
/// What also needs a client that signed in, an index of packages, a page, a tool server or a question. Their own tests
/// make these.
const NEEDS_MORE: [&str; 6] =
    ["/connections/", "/v1/browse", "/packages", "/v1/tools/", "/v1/approvals/", "/v1/tool-servers/"];

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
        let output = tokio::process::Command::new("bash")
            .args(["-c", &format!("curl() {{ command curl -sSf -m 60 \"$@\"; }}\n{example}")])
            .current_dir(self.folder)
            .env("MCP_API_TOKEN", TOKEN)
            .env("TOKEN_ID", id(&token, "id"))
            .env("RUN_ID", id(&run, "runId"))
            .env("SESSION_ID", id(&session, "sessionId"))
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
        if !needs(&example, &NEEDS_RUNNERS) && !needs(&example, &NEEDS_MORE) {
            let run = json!({"language": "python", "code": "print 1\nsleep 1s", "wait": 0});
            place.run(&example, run).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn examples_that_need_real_programs_run_as_printed() {
    let folder = tempfile::tempdir().expect("a folder");
    let skills = folder.path().join("skills");
    std::fs::create_dir(&skills).expect("a folder");
    let server = Server::with(&[("SANDBOX_SKILLS__ROOT", skills.to_str().expect("text"))]).await;
    let url = server.url("");
    let browser = page(&url).await;
    let place = Place { http: &server.http, url: &url, folder: folder.path() };
    let zip = zipped(&[("SKILL.md", skill_md("my-skill", "A skill.").as_bytes())]);
    std::fs::write(folder.path().join("my-skill.zip"), &zip).expect("written");
    let examples = printed(&browser).await;
    browser.close().await;
    let mut tried = 0;
    for example in examples.iter().filter(|example| needs(example, &NEEDS_RUNNERS)) {
        // One of them deletes it.
        let put = server.http.put(server.url("/v1/skills/my-skill")).bearer_auth(TOKEN);
        let put = put.header("content-type", "application/zip").body(zip.clone()).send().await.expect("an answer");
        assert!(put.status().is_success(), "{}", put.status());
        let code = "import sys\nprint(sys.stdin.read())";
        place.run(example, json!({"language": "python", "code": code, "stdinOpen": true, "wait": 0})).await;
        tried += 1;
    }
    assert!(tried > NEEDS_RUNNERS.len(), "{tried} examples");
    server.stop().await;
}
