//! Runs over MCP, detached, fetched again, watched and cancelled; on the fake engine, with clients of every protocol
//! version.

use std::time::Duration;

use futures_util::StreamExt;
use mcp_sandbox_server::{
    domain::owner::{ConversationKey, Principal},
    services::runs::{RunRequest, RunState},
};
use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{
    dice::Dice,
    fake_server::{BOTH, FakeServer},
    scale::how_many,
    server::TOKEN,
    until,
};

mod answered;
mod feed;
mod tasks;

const LONG: Duration = Duration::from_mins(1);

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().expect("a text first")
}

fn call(id: u64, arguments: &Value) -> Value {
    let mut whole = json!({"conversationId": format!("c{id}"), "language": "python"});
    for (name, value) in arguments.as_object().expect("arguments") {
        whole[name] = value.clone();
    }
    let params = json!({"name": "sandbox.run_code", "arguments": whole});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
}

/// The same call from a client of the stateless protocol version.
fn modern(server: &FakeServer, mut message: Value) -> RequestBuilder {
    message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
    message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    let headers =
        [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", "sandbox.run_code")];
    let request = server.post(message.to_string()).header("accept", BOTH);
    headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))
}

async fn begun(server: &FakeServer, code: &str) -> Value {
    let arguments = json!({"conversationId": "c", "language": "python", "code": code, "waitSeconds": 0});
    let result = server.call("sandbox.run_code", arguments).await;
    assert_eq!(result["isError"], false, "{result}");
    result
}

/// The outcome of a conversation's newest run, once it is over.
fn ended(server: &FakeServer, conversation: &str) -> Option<&'static str> {
    let id = conversation.parse().expect("an id");
    let page = server.mcp.runs.list(&Principal::default(), Some(&id), None, 1);
    let report = page.runs.first()?.result.clone()?.expect("a report");
    Some(report.outcome.ended.word())
}

async fn running(server: &FakeServer, conversation: &str) {
    let id = conversation.parse().expect("an id");
    until("the program runs", async || {
        let page = server.mcp.runs.list(&Principal::default(), Some(&id), None, 1);
        page.runs.first().is_some_and(|view| view.state == RunState::Running)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_that_outlasts_the_wait_is_fetched_by_id() {
    let server = FakeServer::start().await;
    let gif = "GIF89a\u{1}\u{1}\u{1}\u{1}end";
    let left = begun(&server, &format!("print first\nwait-file go\nwrite a.gif {gif}\nstderr oh\nprint last")).await;
    let report = &left["structuredContent"];
    let id = report["runId"].as_str().expect("an id");
    assert!(matches!(report["state"].as_str(), Some("queued" | "running")), "{left}");
    assert!(report.get("outcome").is_none() && report["files"] == json!([]), "{left}");
    for part in ["sandbox_get_run", "sandbox_cancel_run", id] {
        assert!(text(&left).contains(part), "{part} in {left}");
    }
    running(&server, "c").await;
    let ask = async |after: u64, wait: u64| {
        server.call("sandbox_get_run", json!({"runId": id, "afterEvent": after, "waitSeconds": wait})).await
    };
    // Until the first line is there; then only what comes after it.
    let mut now = Value::Null;
    until("the first line is printed", async || {
        now = ask(0, 0).await;
        now["structuredContent"]["stdout"] != ""
    })
    .await;
    assert_eq!((&now["structuredContent"]["state"], &now["isError"]), (&json!("running"), &json!(false)), "{now}");
    assert_eq!(now["structuredContent"]["stdout"], "first\n");
    assert!(text(&now).starts_with("first\n") && text(&now).contains("sandbox_get_run"), "{now}");
    let newest = now["structuredContent"]["newestEvent"].as_u64().expect("a number");
    let since = ask(newest, 0).await;
    assert_eq!(
        (&since["structuredContent"]["stdout"], &since["structuredContent"]["state"]),
        (&json!(""), &json!("running"))
    );
    std::fs::write(server.root.join("c/files/go"), "").expect("written");
    let whole = ask(newest, 60).await;
    let report = &whole["structuredContent"];
    assert_eq!(
        (&report["state"], &report["stdout"], &report["stderr"]),
        (&json!("finished"), &json!("first\nlast\n"), &json!("oh\n"))
    );
    assert_eq!((&report["outcome"]["exitCode"], &report["files"][0]["path"]), (&json!(0), &json!("a.gif")));
    let kinds: Vec<_> = whole["content"].as_array().expect("content").iter().map(|block| &block["type"]).collect();
    assert_eq!(kinds, ["text", "image", "resource_link"], "{whole}");
    let file = server.http.get(report["files"][0]["url"].as_str().expect("a link")).send().await.expect("an answer");
    assert_eq!(file.status(), 200);
    assert_eq!(ask(0, 0).await, whole, "and as often as one asks");
    let direct = server.run("c2", "print x").await;
    assert_eq!(direct["structuredContent"]["state"], "finished");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_its_owner_cancels_a_run_by_id() {
    let server = FakeServer::start().await;
    let left = begun(&server, "print before\nhang").await;
    let id = left["structuredContent"]["runId"].clone();
    running(&server, "c").await;
    let stopped = server.call("sandbox.cancel_run", json!({"runId": id})).await;
    let report = &stopped["structuredContent"];
    assert_eq!((&report["outcome"]["ended"], &stopped["isError"]), (&json!("cancelled"), &json!(false)), "{stopped}");
    assert_eq!((&report["state"], &report["stdout"]), (&json!("finished"), &json!("before\n")));
    until("its sandbox is gone", async || server.engine.live().is_empty()).await;
    assert_eq!(server.call("sandbox.cancel_run", json!({"runId": id})).await["structuredContent"], *report);
    let fetched = server.call("sandbox.get_run", json!({"runId": id})).await;
    assert_eq!((&fetched["structuredContent"], &fetched["isError"]), (report, &json!(true)));
    let (conversation, language) = ("c".parse().expect("an id"), "python".parse().expect("a language"));
    let request = RunRequest::new(
        ConversationKey::new("other".parse().expect("a principal"), conversation),
        language,
        "print secret".into(),
    );
    let foreign = server.mcp.runs.begin(request).expect("a run");
    foreign.finished().await.expect("a report");
    for run in [foreign.id().to_string(), format!("run-{}", "0".repeat(32))] {
        for tool in ["sandbox.get_run", "sandbox_cancel_run"] {
            let refused = server.call(tool, json!({"runId": run})).await;
            assert_eq!(refused["structuredContent"]["error"]["code"], "run_not_found", "{tool} {run}");
            assert!(text(&refused).starts_with("runId: there is no run") && refused["isError"] == true, "{refused}");
        }
    }
    server.stop().await;
}

/// Begins a call, waits until its program runs, and disconnects.
async fn begin_and_leave(server: &FakeServer, conversation: &str, request: RequestBuilder) {
    let answer = async { request.send().await.expect("an answer").text().await };
    tokio::select! {
        answer = answer => panic!("answered: {answer:?}"),
        () = running(server, conversation) => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnect_follows_the_setting_and_the_detach_argument() {
    for (setting, detach, verdict) in [
        ("cancel", None, "cancelled"),
        ("cancel", Some(true), "exited"),
        ("detach", None, "exited"),
        ("detach", Some(false), "cancelled"),
    ] {
        let server = FakeServer::with(&[("SANDBOX_RUNS__ON_DISCONNECT", setting)]).await;
        let code = if verdict == "exited" { "sleep 2s\nprint done" } else { "hang" };
        let mut arguments = json!({"code": code});
        if let Some(detach) = detach {
            arguments["detach"] = json!(detach);
        }
        begin_and_leave(&server, "c1", server.post(call(1, &arguments).to_string())).await;
        begin_and_leave(&server, "c2", modern(&server, call(2, &arguments))).await;
        let over = async || ended(&server, "c1").is_some() && ended(&server, "c2").is_some();
        until("both are over", over).await;
        assert_eq!(
            (ended(&server, "c1"), ended(&server, "c2")),
            (Some(verdict), Some(verdict)),
            "{setting} {detach:?}"
        );
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_fails_also_says_what_it_had_printed() {
    let server = FakeServer::start().await;
    for (id, code, printed) in [("a", "print out\nstderr err", "out\n[standard error]\nerr\n"), ("b", "sleep 1ms", "")]
    {
        server.engine.faults().exits_to_lose += 1;
        let answer = server.run(id, code).await;
        assert_eq!(answer["isError"], true, "{answer}");
        let text = answer["content"][0]["text"].as_str().expect("text");
        let sentence = text.strip_prefix(printed).expect("what was printed");
        assert!(sentence.starts_with("The container engine lost"), "{text}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_notification_stops_a_detached_run() {
    let server = FakeServer::start().await;
    let (session, other) = (server.open_session().await, server.open_session().await);
    let told = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    for detach in [false, true] {
        let message = call(1, &json!({"code": "hang", "detach": detach}));
        let stream = server.in_session(&session, &message).send().await.expect("a stream");
        running(&server, "c1").await;
        // The same number of another client is another call.
        assert_eq!(server.in_session(&other, &told).send().await.expect("an answer").status(), 202);
        let id = "c1".parse().expect("an id");
        let state = || server.mcp.runs.list(&Principal::default(), Some(&id), None, 1).runs[0].state.clone();
        assert_eq!(state(), RunState::Running);
        assert_eq!(server.in_session(&session, &told).send().await.expect("an answer").status(), 202);
        until("it is over", async || ended(&server, "c1").is_some() && state() == RunState::Finished).await;
        assert_eq!(ended(&server, "c1"), Some("cancelled"));
        until("its sandbox is gone", async || server.engine.live().is_empty()).await;
        drop(stream);
    }
    // The end of a session is a disconnect: it does not stop a detached run.
    let message = call(1, &json!({"code": "sleep 2s\nprint done", "detach": true}));
    let stream = server.in_session(&session, &message).send().await.expect("a stream");
    running(&server, "c1").await;
    let url = format!("http://{}/mcp", server.address);
    let closed = server.http.delete(url).bearer_auth(TOKEN).header("mcp-session-id", &session);
    assert!(closed.send().await.expect("an answer").status().is_success());
    until("it is over", async || ended(&server, "c1").is_some()).await;
    assert_eq!(ended(&server, "c1"), Some("exited"));
    drop(stream);
    server.stop().await;
}

/// The messages of an event stream, one by one.
struct Stream {
    response: Response,
    text: String,
}

impl Stream {
    fn of(response: Response) -> Self {
        Self { response, text: String::new() }
    }

    /// The next message; nothing when the stream has ended.
    async fn next(&mut self) -> Option<Value> {
        loop {
            while let Some(end) = self.text.find('\n') {
                let line: String = self.text.drain(..=end).collect();
                let data = line.strip_prefix("data:").map(str::trim).filter(|data| !data.is_empty());
                if let Some(data) = data {
                    return Some(serde_json::from_str(data).expect("JSON"));
                }
            }
            let chunk = timeout(LONG, self.response.chunk()).await.expect("in time").ok()??;
            self.text.push_str(std::str::from_utf8(&chunk).expect("text"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_sent_as_progress_while_the_program_runs() {
    let server = FakeServer::start().await;
    let code = "print one\nwait-file go\nstderr two\nwait-file go\nprint three\nflood 100000\nwait-file go";
    let mut message = call(1, &json!({"code": code}));
    message["params"]["_meta"] = json!({"progressToken": "p"});
    let session = server.open_session().await;
    let streaming = server.post(message.to_string()).header("accept", BOTH);
    for request in [streaming, modern(&server, message.clone()), server.in_session(&session, &message)] {
        let mut stream = Stream::of(request.send().await.expect("a stream"));
        let (mut told, mut progress, mut steps) = (Vec::new(), 0.0, 0);
        let result = loop {
            let message = stream.next().await.expect("a message");
            if message.get("result").is_some() {
                break message["result"].clone();
            }
            let params = &message["params"];
            assert_eq!((&message["method"], &params["progressToken"]), (&json!("notifications/progress"), &json!("p")));
            assert!(params["progress"].as_f64().is_some_and(|now| now > progress), "{message}");
            progress = params["progress"].as_f64().unwrap_or_default();
            told.push(params["message"].as_str().expect("a text").to_owned());
            let is_cut = told.last().is_some_and(|text| text.starts_with("[… some output is left out"));
            if (steps < 2 && told.len() == steps + 1) || (steps == 2 && is_cut) {
                std::fs::write(server.root.join("c1/files/go"), "").expect("written");
                steps += 1;
            }
        };
        assert_eq!(told.first().map(String::as_str), Some("one\n"), "{told:?}");
        assert_eq!(told.get(1).map(String::as_str), Some("two\n"), "{told:?}");
        assert!(told.len() > 2 && told.iter().all(|text| text.len() < 5000), "{told:?}");
        assert!(told[2..].iter().any(|text| text.starts_with("[… some output is left out")), "{told:?}");
        assert_eq!(result["structuredContent"]["figures"]["stdoutBytes"], 100_010, "{told:?}");
    }
    // A client that accepts only JSON gets one answer, whatever it requested.
    message["params"]["arguments"]["code"] = json!("print one\nstderr two");
    let plain = server.post(message.to_string()).header("accept", "application/json").send().await.expect("an answer");
    assert_eq!(plain.headers()["content-type"], "application/json");
    assert_eq!(plain.json::<Value>().await.expect("JSON")["result"]["structuredContent"]["stderr"], "two\n");
    server.stop().await;
}

fn feed(server: &FakeServer) -> RequestBuilder {
    server.http.get(format!("http://{}/mcp/events", server.address)).bearer_auth(TOKEN)
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_disconnect_at_random_leave_nothing() {
    let clients = how_many(100, 1000);
    let server =
        FakeServer::with(&[("SANDBOX_LIMITS__WALL_MS", "3000"), ("SANDBOX_ADMISSION__QUEUE_MAX", "2000")]).await;
    let mut chance = Dice::new(1);
    let sessions = [server.open_session().await, server.open_session().await];
    let stay = |chance: &mut Dice| Duration::from_millis(chance.below(150));
    let vanish = (0..clients).map(|n| {
        let code = chance.one_of(&["hang", "print x\nhang", "sleep 20ms\nprint y", "flood 300000\nhang"]);
        let mut message = call(n as u64 + 1, &json!({"code": code}));
        message["params"]["_meta"] = json!({"progressToken": n});
        let request = match chance.below(5) {
            0 => server.post(message.to_string()),
            1 => server.post(message.to_string()).header("accept", BOTH),
            2 => modern(&server, message),
            3 => server.in_session(&sessions[n % 2], &message),
            _ => feed(&server),
        };
        let (begin, end) = (stay(&mut chance), stay(&mut chance));
        async move {
            // Neither waits for anything to have happened: this is the random moment.
            tokio::time::sleep(begin).await;
            let talk = async {
                let mut stream = request.send().await.expect("an answer").bytes_stream();
                while stream.next().await.is_some() {}
            };
            timeout(end, talk).await.is_err()
        }
    });
    let vanished = futures_util::future::join_all(vanish).await;
    let vanished = vanished.into_iter().filter(|vanished| *vanished).count();
    assert!(vanished > clients / 3, "only {vanished} of {clients} vanished");
    // Those of sessions are not given up by that; they reach their limit.
    until("no run is under way", async || server.mcp.runs.under_way() == 0).await;
    // A sandbox that was given up while it started is leased until it has started.
    until("no sandbox is leased", async || server.janitor.leased() == 0).await;
    server.janitor.idle().await;
    assert_eq!(server.engine.live(), []);
    assert_eq!(server.run("after", "print there").await["structuredContent"]["stdout"], "there\n");
    server.stop().await;
}
