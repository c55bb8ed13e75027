//! Secrets that programs use and never have, in real sandboxes, against a host that repeats what it is sent.

use std::io::Write as _;

use reqwest::Method;
use serde_json::json;

use super::{printed, run, vault::Vault};
use crate::support::{
    calls::{ask, cell, get, open_session, post, request},
    server::{Server, TOKEN},
    until,
};

const PYTHON: &str = "python";
const NODE: &str = "javascript";
const BASH: &str = "bash";

const VALUE: &str = "canary-8fK2/Lq+0zR7-of-the-api";

/// A server whose programs may reach the vault, with a secret for `good` and `untrusted` and rules for `ruled`, and
/// plain HTTP at another port.
pub(super) async fn server(vault: &Vault, plain: &str) -> Server {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    let Vault { good, ruled, untrusted, roots, .. } = vault;
    write!(
        file,
        r#"
        [network.api]
        hosts = ["{good}", "{untrusted}", "{plain}"]
        every_token = true
        [network.reads]
        hosts = ["{ruled}"]
        every_token = true
        methods = ["GET", "TRACE"]
        paths = ["/v1/", "/status"]
        [secrets.api]
        hosts = ["{good}", "{untrusted}"]
        [opened]
        ca_file = "{}"
        "#,
        roots.path().display()
    )
    .expect("written");
    let file = file.path().display().to_string();
    Server::with(&[("--config", &file), ("SANDBOX_SECRETS__API", VALUE), ("SANDBOX_STANDBY__TOTAL_MAX", "2")]).await
}

/// No value, in any text.
fn assert_hidden(places: &[(&str, &str)]) {
    for (place, text) in places {
        assert!(!text.contains(VALUE) && !text.contains(&VALUE[7..]), "the value is in {place}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn usual_clients_send_the_value_and_have_the_placeholder() {
    let vault = Vault::start(VALUE).await;
    let server = server(&vault, "127.0.0.2:9").await;
    let url = format!("https://{}/hello", vault.good);
    let python = format!(
        r#"
import os, subprocess, urllib.request, requests, httpx
url, token = "{url}", os.environ["API_TOKEN"]
headers = {{"Authorization": "Bearer " + token}}
print(urllib.request.urlopen(urllib.request.Request(url, headers=headers)).read().decode())
print(requests.get(url, headers=headers).text, requests.get(url, auth=("me", token)).text)
print(httpx.get(url, headers=headers).text)
curl = ["curl", "-sS", "-H", "Authorization: Bearer " + token, url]
print(subprocess.run(curl, capture_output=True, text=True).stdout)
print(os.environ)
"#
    );
    let node = format!(
        "fetch('{url}', {{headers: {{authorization: 'Bearer ' + process.env.API_TOKEN}}}})\
         .then((r) => r.text()).then(console.log, (e) => console.log(e.cause));"
    );
    let bash = format!("git ls-remote https://me:$API_TOKEN@{}/git/x 2>&1; echo; env", vault.good);
    for (language, code, count) in [(PYTHON, &python, 5), (NODE, &node, 1), (BASH, &bash, 1)] {
        let (stdout, stderr) = printed(&server, language, code).await;
        let seen = vault.seen();
        let basic = "Basic bWU6Y2FuYXJ5LThmSzIvTHErMHpSNy1vZi10aGUtYXBp";
        let sent = seen.iter().filter(|request| request.contains(VALUE) || request.contains(basic)).count();
        assert_eq!(sent, count, "{language}: {stdout}{stderr}{seen:#?}");
        assert!(language == BASH || stdout.matches("hello").count() == count, "{language}: {stdout}{stderr}");
        assert_hidden(&[("stdout", &stdout), ("stderr", &stderr)]);
    }
    for path in ["/v1/network/decisions", "/v1/runs", "/metrics", "/v1/history"] {
        let request = request(&server, TOKEN, Method::GET, path);
        assert_hidden(&[(path, &request.send().await.expect("an answer").text().await.expect("a text"))]);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_memory_and_no_file_of_a_sandbox_holds_the_value() {
    let vault = Vault::start(VALUE).await;
    let server = server(&vault, "127.0.0.2:9").await;
    // The needle is compared in a form that this program itself does not hold.
    let needle: Vec<u8> = VALUE.bytes().map(|byte| byte ^ 0x55).collect();
    let code = format!(
        r#"
import glob, os, requests
for _ in range(3):
    requests.get("https://{}/form?plain", headers={{"Authorization": os.environ["API_TOKEN"]}})
table, needle, read, found = bytes(b ^ 0x55 for b in range(256)), bytes({needle:?}), 0, []
for process in glob.glob("/proc/[0-9]*"):
    try:
        for line in open(process + "/maps"):
            span, mode, *_ = line.split()
            first, last = (int(end, 16) for end in span.split("-"))
            if "r" not in mode or "[v" in line or last - first > 1 << 27: continue
            try:
                with open(process + "/mem", "rb") as memory:
                    memory.seek(first)
                    piece = memory.read(last - first)
                    read += len(piece)
                    if needle in piece.translate(table): found.append((process, line))
            except OSError: pass
    except OSError: pass
for folder in ("/tmp", "/data"):
    for path in glob.glob(folder + "/**", recursive=True, include_hidden=True):
        if os.path.isfile(path) and needle in open(path, "rb").read().translate(table): found.append(path)
print(read > 10_000_000, found, os.path.exists("/data/.sandbox-tls"), sorted(os.listdir("/tmp/.sandbox-tls")))
"#,
        vault.good
    );
    let (stdout, stderr) = printed(&server, PYTHON, &code).await;
    assert_eq!(stdout, "True [] False ['authority.pem', 'bundle.pem']\n", "{stderr}");
    assert_eq!(vault.seen().iter().filter(|request| request.contains(VALUE)).count(), 3);
    let placeholder = async |code: &str| {
        let body = json!({"language": PYTHON, "code": code});
        run(&server, &body).await["result"]["stdout"].as_str().expect("a text").to_owned()
    };
    let print = "import os; print(os.environ['API_TOKEN'])";
    let (one, other) = (placeholder(print).await, placeholder(print).await);
    assert!(one.trim().len() == 64 && one != other, "{one}{other}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn session_keeps_its_placeholder_between_cells() {
    let vault = Vault::start(VALUE).await;
    let server = server(&vault, "127.0.0.2:9").await;
    let session = open_session(&server, TOKEN, json!({"language": PYTHON})).await;
    let code = format!(
        "import os, requests\nheaders = {{'Authorization': os.environ['API_TOKEN']}}\n\
         print(requests.get('https://{}/form?plain', headers=headers).text == os.environ['API_TOKEN'])",
        vault.good
    );
    for _ in 0..2 {
        let cell = cell(&server, TOKEN, &session, &code).await;
        assert_eq!(cell["stdout"], "True\n", "{cell}");
    }
    assert_eq!(vault.seen().iter().filter(|request| request.contains(VALUE)).count(), 2);
    assert_eq!(ask(&server, Method::DELETE, &session, None).await.0, 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn placeholder_anywhere_else_stays_one() {
    let (vault, origin) = (Vault::start(VALUE).await, super::Origin::start().await);
    let server = server(&vault, &origin.http.to_string()).await;
    let code = format!(
        r#"
import os, requests
token = os.environ["API_TOKEN"]
good, ruled = "https://{}", "https://{}"
bearer = {{"Authorization": "Bearer " + token}}
others = {{"X-Api-Key": token, "User-Agent": token, "Cookie": token}}
upgrade = {{"Connection": "Upgrade", "Upgrade": "websocket", **bearer}}
for name, call in [
    ("other header", lambda: requests.get(good + "/1", headers=others)),
    ("query", lambda: requests.get(good + "/2?key=" + token)),
    ("path", lambda: requests.get(good + "/3/" + token)),
    ("body", lambda: requests.post(good + "/4", data=token)),
    ("another host", lambda: requests.get(ruled + "/v1/5", headers=bearer)),
    ("redirect", lambda: requests.get(good + "/elsewhere?{}", headers={{"X": token}})),
    ("TRACE", lambda: requests.request("TRACE", good + "/6", headers=bearer)),
    ("upgrade", lambda: requests.get(good + "/7", headers=upgrade)),
    ("named hop by hop", lambda: requests.get(good + "/8", headers={{"Connection": "Authorization", **bearer}})),
    ("plain HTTP", lambda: requests.get("http://{}/hello", headers=bearer)),
    ("range", lambda: requests.get(good + "/9", headers={{"Range": "bytes=0-3", "Accept-Encoding": "gzip", **bearer}})),
]:
    try:
        answer = call(); print(name, answer.status_code, answer.reason)
    except Exception as error: print(name, "failed", error)
"#,
        vault.good, vault.ruled, vault.ruled, origin.http
    );
    let (stdout, stderr) = printed(&server, PYTHON, &code).await;
    let seen = vault.seen();
    for name in ["other header", "query", "path", "body", "another host", "plain HTTP", "range"] {
        assert!(stdout.contains(&format!("{name} 200")), "{name}: {stdout}{stderr}");
    }
    assert!(stdout.contains("TRACE 403") && stdout.contains("upgrade 403"), "{stdout}{stderr}");
    assert!(stdout.contains("redirect 403 `paths` of the policy reads lacks /hello"), "{stdout}");
    let with_value: Vec<_> = seen.iter().filter(|request| request.contains(&VALUE[7..])).collect();
    let [ranged] = with_value[..] else { panic!("{with_value:#?}") };
    let ranged = ranged.to_lowercase();
    assert!(ranged.starts_with("get /9 ") && !ranged.contains("\r\nrange:"), "{ranged}");
    assert!(ranged.contains("\r\naccept-encoding: identity\r\n"), "{ranged}");
    assert!(!seen.iter().any(|request| request.contains("TRACE") || request.contains("websocket")), "{seen:#?}");
    assert_eq!(origin.seen(), 1, "plain HTTP reached its host");
    assert_hidden(&[("stdout", &stdout), ("stderr", &stderr)]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn echoes_are_taken_out_of_answers() {
    let vault = Vault::start(VALUE).await;
    let server = server(&vault, "127.0.0.2:9").await;
    let code = format!(
        r#"
import os, requests
token, good = os.environ["API_TOKEN"], "https://{}"
session = requests.Session()
session.headers["Authorization"] = "Bearer " + token
def get(path): return session.get(good + path, allow_redirects=False)
bodies = [get("/cut?%d" % cut).text for cut in range({})]
print("cut", set(body == "<" + token + ">" for body in bodies))
for form in ["plain", "percent", "json", "html", "base64-0", "base64-1", "base64-2", "basic"]:
    answer = get("/form?" + form)
    print(form, token in answer.text, len(answer.text) - len(token), "EVIDENCE", answer.text)
    answer = get("/headers?" + form)
    location, cookie = answer.headers["Location"], answer.headers["Set-Cookie"]
    print(form, token in location, cookie == "t=" + token, "EVIDENCE", answer.reason, answer.headers)
for path in ["/gzip", "/encoded", "/part", "/lengths", "/endless-head"]:
    answer = get(path)
    print(path, answer.status_code, answer.reason)
print(session.get("https://{}/").reason)
"#,
        vault.good,
        VALUE.len() + 1,
        vault.untrusted
    );
    let (stdout, stderr) = printed(&server, PYTHON, &code).await;
    assert!(stdout.starts_with("cut {True}\n"), "{stdout}{stderr}");
    let forms = ["plain", "percent", "json", "html", "base64-0", "base64-1", "base64-2", "basic"];
    for name in forms {
        let lines: Vec<_> = stdout.lines().filter(|line| line.starts_with(&format!("{name} "))).collect();
        let [body, head] = lines[..] else { panic!("{stdout}{stderr}") };
        assert!(
            body.starts_with(&format!("{name} True ")) && head.starts_with(&format!("{name} True True")),
            "{stdout}"
        );
        let most = if name.starts_with("bas") { 16 } else { 0 };
        let left: usize = body.split(' ').nth(2).and_then(|count| count.parse().ok()).expect("a count");
        assert!(left <= most, "{body}");
    }
    for path in ["/gzip", "/encoded", "/part"] {
        let line = format!("{path} 502 {} answers compressed or in parts", vault.good);
        assert!(stdout.contains(&line), "{line}: {stdout}");
    }
    for path in ["/lengths", "/endless-head"] {
        assert!(stdout.contains(&format!("{path} 502 {} does not answer", vault.good)), "{path}: {stdout}");
    }
    assert!(
        stdout.contains(&format!("{} has a certificate that this server does not trust", vault.untrusted)),
        "{stdout}"
    );
    assert_hidden(&[("stdout", &stdout), ("stderr", &stderr)]);
    let encoded = "Y2FuYXJ5LThmSzIvTHErMHpSNy1vZi10aGUtYXBp";
    for at in [0, 3, 6] {
        assert!(!stdout.contains(&encoded[at..at + 24]), "{stdout}");
    }
    let mut reasons = String::new();
    until("what was refused is listed", async || {
        reasons = get(&server, "/v1/network/decisions").await["decisions"].to_string();
        ["unsearchable", "untrusted"].iter().all(|word| reasons.contains(word))
    })
    .await;
    assert_hidden(&[("decisions", &reasons)]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn model_is_told_the_variable_and_its_hosts() {
    let vault = Vault::start(VALUE).await;
    let server = server(&vault, "127.0.0.2:9").await;
    let answer = post(&server, "/mcp", json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})).await;
    let tools = answer["result"]["tools"].as_array().expect("tools");
    let run_code = tools.iter().find(|tool| tool["name"] == "sandbox_run_code").expect("the tool");
    let about = run_code["description"].as_str().expect("a text");
    assert!(about.contains("API_TOKEN for 127.0.0.2") && !about.contains(VALUE), "{about}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn opened_host_that_never_ends_holds_up_its_program_alone() {
    let vault = Vault::start(VALUE).await;
    let server = server(&vault, "127.0.0.2:9").await;
    let ask = |path: &str, end: &str| {
        format!(
            r#"
import os, urllib.request
def ask(path, size=None):
    request = urllib.request.Request("https://{}" + path, headers={{"Authorization": os.environ["API_TOKEN"]}})
    with urllib.request.urlopen(request, timeout=10) as answer: return answer.read(size)
try: print(ask("{path}", 200000)[:1])
except OSError as error: print("ended")
{end}
"#,
            vault.good
        )
    };
    // A body is passed on as it comes; a head is waited for.
    let hello = "print(ask('/hello'))";
    assert_eq!(printed(&server, PYTHON, &ask("/endless", hello)).await.0, "b'z'\nb'hello'\n");
    assert_eq!(printed(&server, PYTHON, &ask("/slow-head", hello)).await.0, "ended\nb'hello'\n");
    let forever = json!({"language": PYTHON, "code": ask("/endless", "ask('/endless')"),
        "limits": {"wallMs": 8000, "memoryBytes": 134_217_728}});
    let neighbour = async {
        for _ in 0..5 {
            assert_eq!(printed(&server, PYTHON, &ask("/hello", "")).await.0, "b'h'\n");
        }
    };
    let (status, ()) = tokio::join!(run(&server, &forever), neighbour);
    let ended = status["outcome"]["ended"].as_str().unwrap_or_default();
    assert!(["timed_out", "out_of_memory"].contains(&ended), "{status}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn browser_trusts_opened_hosts_and_no_other_certificate() {
    let vault = Vault::start(VALUE).await;
    let server = server(&vault, "127.0.0.2:9").await;
    // The second conversation has a standby's browser, which was started before it had an authority.
    for conversation in ["first", "second"] {
        let browse = async |url: String| {
            let arguments = json!({"conversationId": conversation, "url": url});
            server.rpc("sandbox_browse", arguments).await["result"]["structuredContent"].clone()
        };
        let page = browse(format!("https://{}/v1/hello", vault.ruled)).await;
        assert!(page["text"].as_str().is_some_and(|text| text.contains("hello")), "{page}");
        let refused = browse(format!("https://{}/v2/hello", vault.ruled)).await;
        assert_eq!(refused["status"], 403, "{refused}");
        let untrusted = browse(format!("https://{}/hello", vault.untrusted)).await;
        assert_ne!(untrusted["status"], 200, "{untrusted}");
    }
    server.stop().await;
}
