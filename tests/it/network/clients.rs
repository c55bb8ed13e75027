//! Clients beside the usual ones, each allowed and refused: `git`, `aiohttp`, `axios`, Deno's `fetch`, Playwright, and
//! a Node that was started before its program came. And what the usual ones reach without the proxy.

use std::{path::Path, process::Command};

use serde_json::{Value, json};

use super::{Origin, node, printed, python, run, server};
use crate::support::{
    calls::{cell, get, open_session, streams},
    server::{Server, TOKEN},
    socket::Socket,
    until,
};

/// A server as [`server`] with folders of this machine in each sandbox.
async fn with_folder(origin: &Origin, folder: &Path) -> Server {
    let hosts = format!("{},{}", origin.http, origin.tls);
    let folder = folder.to_str().expect("a path");
    Server::with(&[
        ("SANDBOX_NETWORK__LOCAL", hosts.as_str()),
        ("SANDBOX_STANDBY__TOTAL_MAX", "0"),
        ("SANDBOX_MOUNTS__CLIENT", folder),
    ])
    .await
}

/// What `test.sh` has installed.
fn tools(path: &str) -> std::path::PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/test-tools").join(path);
    assert!(path.exists(), "{} is missing: ./test.sh installs it", path.display());
    path
}

fn git(folder: &Path, arguments: &[&str]) {
    let who = ["-c", "user.name=n", "-c", "user.email=n@example.com"];
    let done = Command::new("git").args(who).args(arguments).current_dir(folder).output().expect("git");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn git_clones_over_tls_what_is_allowed() {
    let origin = Origin::start().await;
    let folder = origin.folder.path();
    std::fs::write(folder.join("file"), "content").expect("written");
    git(folder, &["init", "-q"]);
    git(folder, &["add", "file"]);
    git(folder, &["commit", "-qm", "one"]);
    git(folder, &["clone", "-q", "--bare", ".", "repository.git"]);
    git(&folder.join("repository.git"), &["update-server-info"]);
    let server = server(&origin).await;
    let clone = |host: std::net::SocketAddr, scheme: &str| {
        let url = format!("{scheme}://{host}/static/repository.git");
        json!({"language": "bash", "code": format!("git -c http.sslVerify=false clone -q {url} it && cat it/file")})
    };
    for (host, scheme) in [(origin.tls, "https"), (origin.http, "http")] {
        let status = run(&server, &clone(host, scheme)).await;
        assert_eq!(status["result"]["stdout"], "content", "{status}");
    }
    let seen = origin.seen();
    let status = run(&server, &clone(origin.other, "https")).await;
    let told = status["result"]["stderr"].as_str().unwrap_or_default();
    assert!(told.contains("response 403") && told.contains("no policy allows"), "{status}");
    assert_eq!(origin.seen(), seen);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn aiohttp_with_trust_env_reaches_what_is_allowed_and_tells_the_reason() {
    let origin = Origin::start().await;
    let site = tools("jupyter/lib").read_dir().expect("a folder").next().expect("one").expect("one").path();
    let server = with_folder(&origin, &site.join("site-packages")).await;
    let code = |url: String| {
        format!(
            r#"
import sys; sys.path.append("/mnt/client")
import aiohttp, asyncio
async def main():
    async with aiohttp.ClientSession(trust_env=True) as session:
        async with session.get("{url}", ssl=False) as answer: print(await answer.text())
try: asyncio.run(main())
except Exception as error: print("failed", error)
"#
        )
    };
    for (host, scheme) in [(origin.http, "http"), (origin.tls, "https")] {
        let (stdout, stderr) = printed(&server, "python", &code(format!("{scheme}://{host}/hello"))).await;
        assert_eq!(stdout, "hello\n", "{scheme}: {stderr}");
    }
    let (stdout, stderr) = printed(&server, "python", &code(format!("https://{}/hello", origin.other))).await;
    assert!(stdout.starts_with("failed 403") && stderr.contains("no policy allows"), "{stdout}{stderr}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn axios_reaches_what_is_allowed() {
    let origin = Origin::start().await;
    let server = with_folder(&origin, &tools("npm")).await;
    let code = |url: String| {
        format!(
            "process.env.NODE_TLS_REJECT_UNAUTHORIZED = '0'; process.removeAllListeners('warning');\n\
             const axios = require('/mnt/client/node_modules/axios');\n\
             axios.get('{url}').then((a) => console.log(a.data), (e) => console.log('failed ' + e.message));"
        )
    };
    for (host, scheme) in [(origin.http, "http"), (origin.tls, "https")] {
        let (stdout, stderr) = printed(&server, "javascript", &code(format!("{scheme}://{host}/hello"))).await;
        assert_eq!(stdout, "hello\n", "{scheme}: {stderr}");
    }
    let seen = origin.seen();
    for scheme in ["http", "https"] {
        let url = format!("{scheme}://{}/hello", origin.other);
        let (stdout, stderr) = printed(&server, "javascript", &code(url)).await;
        assert!(stdout.starts_with("failed") && stderr.contains("no policy allows"), "{scheme}: {stdout}{stderr}");
    }
    assert_eq!(origin.seen(), seen);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fetch_of_deno_in_a_session_reaches_what_is_allowed() {
    let origin = Origin::start().await;
    let server = server(&origin).await;
    let session = open_session(&server, TOKEN, json!({"language": "typescript"})).await;
    let cell = async |code: String| cell(&server, TOKEN, &session, &code).await;
    let made = format!("const client = Deno.createHttpClient({{caCerts: [`{}`]}});", origin.certificate);
    cell(made).await;
    for url in [format!("http://{}/hello", origin.http), format!("https://{}/hello", origin.tls)] {
        let said = cell(format!("console.log(await (await fetch('{url}', {{client}})).text())")).await;
        assert_eq!(said["stdout"], "hello\n", "{url}: {said}");
    }
    let refused = cell(format!("await fetch('https://{}/hello', {{client}})", origin.other)).await;
    assert!(refused["stderr"].as_str().is_some_and(|text| text.contains("no policy allows")), "{refused}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_in_standbys_use_the_proxy_too() {
    let origin = Origin::start().await;
    let server = Server::with(&[("SANDBOX_NETWORK__LOCAL", &origin.http.to_string())]).await;
    for (language, code) in [
        ("javascript", "fetch('http://HOST/hello').then((r) => r.text()).then((t) => console.log(t))"),
        ("typescript", "const t: string = await (await fetch('http://HOST/hello')).text(); console.log(t)"),
        ("python", "import urllib.request; print(urllib.request.urlopen('http://HOST/hello').read().decode())"),
        ("bash", "curl -sS http://HOST/hello; echo"),
    ] {
        let code = code.replace("HOST", &origin.http.to_string());
        let body = json!({"language": language, "code": code, "conversationId": language});
        let reaches = async || {
            let status = run(&server, &body).await;
            assert_eq!(status["result"]["stdout"], "hello\n", "{language}: {status}");
        };
        let taken = server.standbys.taken();
        until(&format!("{language} runs in a standby"), async || {
            reaches().await;
            server.standbys.taken() > taken
        })
        .await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cell_of_a_notebook_says_what_was_refused() {
    let origin = Origin::start().await;
    let server = server(&origin).await;
    let kernels = format!("/jupyter/t/{TOKEN}/api/kernels");
    let made = server.http.post(server.url(&kernels)).json(&json!({"name": "python3"})).send().await;
    let kernel: Value = made.expect("an answer").json().await.expect("JSON");
    let path = format!("{kernels}/{}/channels", kernel["id"].as_str().expect("an id"));
    let mut socket = Socket::connect(server.address, &path, &[]).await.expect("a connection");
    let code = format!(
        "import urllib.request\ntry: urllib.request.urlopen('http://{}/hello')\nexcept OSError: print('refused')",
        origin.other
    );
    for _ in 0..2 {
        let request = socket.execute(&code).await;
        let answers = socket.answers(&request).await;
        let told =
            |message: &&Value| message["content"]["text"].as_str().is_some_and(|text| text.contains("no policy"));
        assert_eq!(answers.iter().filter(told).count(), 1, "once in each cell: {answers:?}");
    }
    assert_eq!(socket.run("print(1)").await, "1\n");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn browser_says_that_a_certificate_is_not_trusted() {
    let origin = Origin::start().await;
    let server = server(&origin).await;
    let url = format!("https://{}/hello", origin.tls);
    let answer = server.rpc("sandbox_browse", json!({"conversationId": "c", "url": url})).await;
    let told = answer["result"].to_string();
    assert!(told.contains("ERR_CERT") || told.contains("certificate"), "{told}");
    assert!(!told.contains("\"status\":200"), "{told}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn playwright_reaches_over_tls_what_is_allowed_and_is_told_why_it_does_not_reach_the_rest() {
    let origin = Origin::start().await;
    let server = server(&origin).await;
    let (allowed, refused) = (format!("https://{}/hello", origin.tls), format!("https://{}/hello", origin.other));
    let reason = format!("no policy allows {}", origin.other);
    let answer = server.rpc("sandbox_browse", json!({"conversationId": "c", "url": refused})).await;
    let page = &answer["result"]["structuredContent"];
    assert!(page["error"]["kind"] == "navigation" && page["notes"].to_string().contains(&reason), "{answer}");
    let code = format!(
        r#"
mine = await (await browser.new_context(ignore_https_errors=True)).new_page()
for url in ["{allowed}", "{refused}"]:
    try:
        await mine.goto(url)
        print(await mine.inner_text("body"))
    except Exception as error: print("failed", "ERR_TUNNEL_CONNECTION_FAILED" in str(error))
"#
    );
    let call = json!({"conversationId": "c", "language": "browser", "code": code});
    let answer = server.rpc("sandbox_run_cell", call).await;
    let (stdout, stderr) = streams(&answer["result"]["structuredContent"]);
    assert_eq!(stdout, "hello\nfailed True\n", "{answer}");
    assert!(stderr.contains(&reason), "{stderr}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_of_programs_are_reached_without_the_proxy() {
    let origin = Origin::start().await;
    let server = server(&origin).await;
    let url = "http://127.0.0.1:8000/";
    let own = r#"
import http.server, threading
class Own(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")
    def log_message(self, *arguments): pass
own = http.server.HTTPServer(("127.0.0.1", 8000), Own)
threading.Thread(target=own.serve_forever, daemon=True).start()
"#;
    let (stdout, stderr) = printed(&server, "python", &format!("{own}{}", python(url))).await;
    assert_eq!(stdout, "urllib hello\nrequests hello\nhttpx hello\ncurl hello\n", "{stderr}");
    let code = format!(
        "const own = require('http').createServer((asked, answer) => {{ own.close(); answer.end('hello'); }});\n\
         own.listen(8000, '127.0.0.1', () => {{ {} }});",
        node(url)
    );
    let (stdout, stderr) = printed(&server, "javascript", &code).await;
    assert_eq!(stdout, "fetch hello\n", "{stderr}");
    assert_eq!(get(&server, "/v1/network/decisions").await["decisions"], json!([]));
    server.stop().await;
}
