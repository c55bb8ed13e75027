//! Network by permission, with the usual clients in real sandboxes, against servers on this machine.

mod clients;
mod crowd;
mod ends;
mod hostile;
mod inner;
mod opened;
pub mod origin;
mod page;
mod port;
mod reported;
mod resolver;
mod secrets;
mod upstreams;
pub mod vault;

use reqwest::Method;
use serde_json::{Value, json};

use self::origin::Origin;
use crate::support::{
    calls::{ask, call, cell, create, open_session, post, streams},
    server::{Server, TOKEN},
};

/// A server whose programs may reach the origin's ports.
async fn server(origin: &Origin) -> Server {
    let hosts = [origin.http, origin.tls, origin.silent, origin.endless].map(|host| host.to_string()).join(",");
    // Programs that wait for answers that never come take their time.
    let wall = ("SANDBOX_LIMITS__WALL_MS", "120000");
    Server::with(&[("SANDBOX_NETWORK__LOCAL", &hosts), ("SANDBOX_STANDBY__TOTAL_MAX", "0"), wall]).await
}

/// Runs a program to its end over REST; the whole status.
async fn run(server: &Server, body: &Value) -> Value {
    post(server, "/v1/runs", body.clone()).await
}

async fn printed(server: &Server, language: &str, code: &str) -> (String, String) {
    streams(&run(server, &json!({"language": language, "code": code})).await["result"])
}

/// Each prints one line: what it got, or that it failed.
fn python(url: &str) -> String {
    format!(
        r#"
import ssl, urllib.request, requests, httpx, subprocess, urllib3
urllib3.disable_warnings()
url = "{url}"
def one(name, get):
    try: print(name, get())
    except Exception as error: print(name, "failed", str(error).replace("\n", " ")[:300])
one("urllib", lambda: urllib.request.urlopen(url, context=ssl._create_unverified_context()).read().decode())
one("requests", lambda: requests.get(url, verify=False).text)
one("httpx", lambda: httpx.get(url, verify=False).text)
def curl():
    done = subprocess.run(["curl", "-sSk", url], capture_output=True, text=True)
    return done.stdout or "failed " + done.stderr
one("curl", curl)
"#
    )
}

fn node(url: &str) -> String {
    format!(
        "process.env.NODE_TLS_REJECT_UNAUTHORIZED = '0'; process.removeAllListeners('warning');\n\
         fetch('{url}').then((r) => r.text()).then((t) => console.log('fetch ' + t), \
         (e) => console.log('fetch failed ' + e.cause));"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn usual_clients_reach_what_is_allowed_and_nothing_else() {
    let origin = Origin::start().await;
    let server = server(&origin).await;
    for url in [format!("http://{}/hello", origin.http), format!("https://{}/hello", origin.tls)] {
        let (stdout, stderr) = printed(&server, "python", &python(&url)).await;
        assert_eq!(stdout, "urllib hello\nrequests hello\nhttpx hello\ncurl hello\n", "{url}: {stderr}");
        assert_eq!(stderr, "", "{url}");
        let (stdout, stderr) = printed(&server, "javascript", &node(&url)).await;
        assert_eq!(stdout, "fetch hello\n", "{url}: {stderr}");
    }
    let seen = origin.seen();
    for url in [format!("http://{}/hello", origin.other), format!("https://{}/hello", origin.other)] {
        let (stdout, stderr) = printed(&server, "python", &python(&url)).await;
        assert!(!stdout.contains(" hello"), "{stdout}");
        for client in ["urllib", "requests", "httpx", "curl"] {
            let line = stdout.lines().find(|line| line.starts_with(client)).unwrap_or_else(|| panic!("{stdout}"));
            // Of a tunnel curl shows the number alone.
            let is_told = line.contains("no policy allows") || client == "curl" && line.contains("response 403");
            assert!(is_told, "the reason reaches the program: {url}: {line}");
        }
        let told = format!("[network: no policy allows {}. The operator can name it", origin.other);
        assert_eq!(stderr.matches(&told).count(), 1, "{stderr}");
        let (stdout, stderr) = printed(&server, "javascript", &node(&url)).await;
        assert!(!stdout.contains("fetch hello") && stderr.contains(&told), "{stdout}{stderr}");
    }
    assert_eq!(origin.seen(), seen, "the origin was reached by what was refused");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_told_with_their_run_and_in_the_list() {
    let origin = Origin::start().await;
    let server = server(&origin).await;
    let code = format!(
        "import requests\nprint(len(requests.get('http://{}/bytes/5000').content))\n\
         print(requests.get('http://{}/').status_code)",
        origin.http, origin.other
    );
    let status = run(&server, &json!({"conversationId": "told", "language": "python", "code": code})).await;
    assert_eq!(status["result"]["stdout"], "5000\n403\n", "{status}");
    let run = status["runId"].as_str().expect("a run");
    let get = async |path: &str| {
        let request = server.http.get(server.url(path)).bearer_auth(TOKEN);
        request.send().await.expect("an answer").text().await.expect("a text")
    };
    let events = get(&format!("/v1/runs/{run}/events")).await;
    let all = events.lines().filter_map(|line| line.strip_prefix("data: "));
    let all: Vec<Value> = all.map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let told: Vec<_> = all.iter().filter(|event| event["kind"] == "network").map(|event| &event["network"]).collect();
    assert_eq!(all.last().expect("events")["kind"], "finished", "{events}");
    let list: Value = serde_json::from_str(&get("/v1/network/decisions").await).expect("JSON");
    let list = list["decisions"].as_array().expect("a list").clone();
    for (target, decision, reason) in
        [(origin.http, "allowed", Value::Null), (origin.other, "refused", json!("not_allowed"))]
    {
        let is_it = |one: &&Value| one["target"] == target.to_string();
        for one in [told.iter().copied().find(is_it).expect("an event"), list.iter().find(is_it).expect("a decision")] {
            assert_eq!((&one["decision"], &one["reason"]), (&json!(decision), &reason), "{one}");
        }
        assert_eq!(list.iter().find(is_it).expect("a decision")["conversationId"], "told");
    }
    let made = told.iter().find(|one| one["decision"] == "allowed").expect("one was made");
    assert!(made["receivedBytes"].as_u64() > Some(5000) && made["sentBytes"].as_u64() > Some(50), "{made}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_narrow_what_tokens_have() {
    let origin = Origin::start().await;
    let server = server(&origin).await;
    let code = format!("import requests\nprint(requests.get('http://{}/hello').text)", origin.http);
    let with = async |network: Value, token: &str| {
        let mut body = json!({"language": "python", "code": code});
        if !network.is_null() {
            body["network"] = network;
        }
        let (_, status) = call(&server, token, Method::POST, "/v1/runs", body).await;
        status["result"]["stdout"].as_str().map_or_else(|| status["detail"].to_string(), str::to_owned)
    };
    let made = async |network: Value| create(&server, json!({"name": "n", "owner": "ann", "network": network})).await.1;
    let (named, without, plain) = (made(json!(["local"])).await, made(json!([])).await, made(Value::Null).await);
    for (network, token, reaches) in [
        (Value::Null, TOKEN, true),
        (json!(["local"]), TOKEN, true),
        (json!([]), TOKEN, false),
        (Value::Null, &named, true),
        (Value::Null, &plain, true),
        (Value::Null, &without, false),
    ] {
        let said = with(network.clone(), token).await;
        assert_eq!(said == "hello\n", reaches, "{network}: {said}");
    }
    for (network, token) in [(json!(["web"]), TOKEN), (json!(["local"]), &without)] {
        let said = with(network, token).await;
        assert!(said.contains("network: this token has no policy"), "{said}");
    }
    for (network, token, reaches) in [(json!([]), TOKEN, false), (json!(["local"]), &named, true)] {
        let session = open_session(&server, token, json!({"language": "python", "network": network})).await;
        let said = cell(&server, token, &session, &code).await;
        assert_eq!(said["stdout"] == "hello\n", reaches, "{network}: {said}");
    }
    for (network, token) in [(json!(["web"]), TOKEN), (json!(["local"]), &without)] {
        let wanted = json!({"language": "python", "network": network});
        let (status, told) = call(&server, token, Method::POST, "/v1/sessions", wanted).await;
        assert!(status == 422 && told.to_string().contains("network: this token has no policy"), "{status} {told}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn session_keeps_its_channels_between_cells() {
    let origin = Origin::start().await;
    let server = server(&origin).await;
    let session = open_session(&server, TOKEN, json!({"language": "python"})).await;
    let cell = async |code: String| cell(&server, TOKEN, &session, &code).await;
    let first =
        cell(format!("import requests\ns = requests.Session()\nprint(s.get('http://{}/hello').text)", origin.http));
    assert_eq!(first.await["stdout"], "hello\n");
    let second = cell(format!(
        "print(s.get('http://{}/hello').text, s.get('http://{}/').status_code)",
        origin.http, origin.other
    ));
    let second = second.await;
    assert_eq!(second["stdout"], "hello 403\n", "{second}");
    assert!(second["stderr"].as_str().is_some_and(|text| text.contains("no policy allows")), "{second}");
    let third = cell(format!("print(s.get('http://{}/hello').text)", origin.http)).await;
    assert_eq!((&third["stdout"], &third["stderr"]), (&json!("hello\n"), &json!("")), "a refusal is told once");
    assert_eq!(ask(&server, Method::DELETE, &session, None).await.0, 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_policy_a_sandbox_has_neither_port_nor_process_nor_variables() {
    let server = Server::start().await;
    let code = "import glob, os, socket\n\
                names = {open(path).read().strip() for path in glob.glob('/proc/[0-9]*/comm')}\n\
                print('sandbox-channel' in names, [name for name in os.environ if 'proxy' in name.lower()])\n\
                print(socket.socket().connect_ex(('127.0.0.1', 3128)))";
    let (stdout, stderr) = printed(&server, "python", code).await;
    assert_eq!(stdout, "False []\n111\n", "{stderr}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_pass_both_ways_beside_a_flood_of_output() {
    let origin = Origin::start().await;
    let server = server(&origin).await;
    let code = format!(
        "import requests, threading, sys\n\
         def flood():\n    for _ in range(20000): sys.stderr.write('x' * 99 + '\\n')\n\
         threads = [threading.Thread(target=flood)]\n\
         got = []\n\
         def down(): got.append(len(requests.get('http://{0}/bytes/20000000').content))\n\
         def up(): got.append(int(requests.post('http://{0}/length', data=b'y' * 15000000).text))\n\
         threads += [threading.Thread(target=down), threading.Thread(target=up), threading.Thread(target=down)]\n\
         [t.start() for t in threads]; [t.join() for t in threads]\n\
         print(sorted(got))",
        origin.http
    );
    let (stdout, stderr) = printed(&server, "python", &code).await;
    assert_eq!(stdout, "[15000000, 20000000, 20000000]\n", "{}", &stderr[..stderr.len().min(2000)]);
    server.stop().await;
}
