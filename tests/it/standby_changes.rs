//! Standbys while the world around them changes: their image is rebuilt under the same name, and their server dies.

use std::{
    collections::HashSet,
    io::Write as _,
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};

use crate::support::{
    Server, free_port,
    images::Image,
    server::{FILE_SECRET, TOKEN},
    until,
};

const MANY: usize = 20;

/// Makes the image anew; its programs can tell which build it is.
fn build(image: &Image, mark: &str) {
    let language = &image.language;
    let text = format!("FROM runner-bash\nENV MARK={mark}\nLABEL sandbox.language={language} sandbox.aliases=\n");
    let mut build = Command::new("docker")
        .args(["build", "--quiet", "--tag", &image.name, "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the docker command: run ./test.sh");
    build.stdin.take().expect("its input").write_all(text.as_bytes()).expect("written");
    assert!(build.wait().expect("built").success());
}

#[tokio::test(flavor = "multi_thread")]
async fn standby_of_a_rebuilt_image_is_never_handed_out() {
    let (server, image, mut before) = (Server::start().await, Image::new("retagged"), None);
    let language = image.language.parse().expect("a language");
    for mark in ["one", "two"] {
        build(&image, mark);
        until("the image is known", async || {
            server.catalog.find(&language).is_some_and(|runner| before.as_ref() != Some(&runner.image))
        })
        .await;
        let now = server.catalog.find(&language).expect("a runner").image;
        for conversation in ["known", &format!("new-{mark}"), "known"] {
            let result = server.run(conversation, &image.language, "echo $MARK").await;
            assert_eq!(result["structuredContent"]["stdout"], format!("{mark}\n"), "{result}");
        }
        until("some stand by", async || server.standbys.standing_by(&now) > 1).await;
        before = Some(now);
    }
    let old = before.expect("an image");
    drop(image);
    until("those of an image that is gone have left", async || server.standbys.standing_by(&old) == 0).await;
    server.settled().await;
    server.stop().await;
}

/// The server's own program, as a process that can be killed.
struct Process {
    child: Child,
    url: String,
}

impl Process {
    fn start(root: &Path) -> Self {
        let port = free_port();
        let url = format!("http://127.0.0.1:{port}");
        let child = Command::new(env!("CARGO_BIN_EXE_mcp-sandbox-server"))
            .arg("serve")
            .env("MCP_API_TOKEN", TOKEN)
            .env("FILE_SECRET", FILE_SECRET)
            .env("SANDBOX_ROOT", root)
            .env("MCP_HTTP_ADDR", format!("127.0.0.1:{port}"))
            .env("PUBLIC_BASE_URL", &url)
            .env("SANDBOX_STANDBY__TOTAL_MAX", MANY.to_string())
            .env("SANDBOX_STANDBY__NAMELESS_MAX", MANY.to_string())
            .env("SANDBOX_LOG__LEVEL", "error")
            .current_dir(root.parent().expect("a folder"))
            .spawn()
            .expect("the server");
        Self { child, url }
    }

    async fn ready(&self) {
        let url = format!("{}/readyz", self.url);
        until("the server is ready", async || {
            crate::support::http::get(&url).await.is_ok_and(|answer| answer.status() == 200)
        })
        .await;
    }

    async fn echo(&self, conversation: &str) {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "sandbox.run_code",
            "arguments": {"conversationId": conversation, "language": "bash", "code": "echo right; echo x >> runs"}}});
        let request = crate::support::http::client()
            .post(format!("{}/mcp?structured=on", self.url))
            .bearer_auth(TOKEN)
            .json(&call);
        let answer: Value = request.send().await.expect("an answer").json().await.expect("JSON");
        assert_eq!(answer["result"]["structuredContent"]["stdout"], "right\n", "{answer}");
    }

    /// By SIGKILL: nothing of the server cleans up.
    fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }

    fn end(mut self) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill").success());
        self.child.wait().expect("gone");
    }
}

/// The containers of the server with this root.
fn containers(root: &Path) -> HashSet<String> {
    let instance = std::fs::read_to_string(root.join(".instance")).expect("the server's name");
    let filter = format!("label=sandbox.instance={}", instance.trim());
    let output = Command::new("docker").args(["ps", "-aq", "--filter", &filter]).output().expect("docker");
    String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn standbys_of_a_killed_server_are_replaced() {
    let folder = tempfile::Builder::new().prefix("sandbox-it-").tempdir().expect("a folder");
    let root = folder.path().join("root");
    let server = Process::start(&root);
    server.ready().await;
    server.echo("c").await;
    until("twenty stand by", async || containers(&root).len() == MANY).await;
    let orphans = containers(&root);
    server.kill();
    assert_eq!(containers(&root), orphans, "nothing was cleaned up");

    let server = Process::start(&root);
    server.ready().await;
    server.echo("c").await;
    server.echo("d").await;
    until("others stand by, and those of the dead server are gone", async || {
        let now = containers(&root);
        now.len() == MANY && now.is_disjoint(&orphans)
    })
    .await;
    server.echo("e").await;
    for (conversation, runs) in [("c", 2), ("d", 1), ("e", 1)] {
        let text = std::fs::read_to_string(root.join(conversation).join("files/runs")).expect("its own folder");
        assert_eq!(text.lines().count(), runs, "{conversation}");
    }
    server.end();
    assert_eq!(containers(&root), HashSet::new());
}
