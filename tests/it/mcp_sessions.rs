//! Sessions on the wire: first events, streams that are resumed, batches, the end, notifications. On raw bytes, since
//! clients differ in what they make of them.

use std::time::Duration;

use reqwest::{RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{
    fake_server::{BOTH, FakeServer, messages},
    server::TOKEN,
    until,
};

mod accepted;
mod answered;
mod followed;

const LONG: Duration = Duration::from_secs(30);
/// What a client is told when the languages change.
const CHANGED: &str = "notifications/tools/list_changed";

/// A client with a session.
struct Session<'a> {
    server: &'a FakeServer,
    version: &'static str,
    id: String,
    /// The whole answer to its initialize.
    opening: String,
}

impl<'a> Session<'a> {
    async fn open(server: &'a FakeServer, version: &'static str, query: &str) -> Self {
        Self::open_as(server, version, query, json!({})).await
    }

    /// With these capabilities of the client.
    async fn open_as(server: &'a FakeServer, version: &'static str, query: &str, capabilities: Value) -> Self {
        let opening = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": version,
            "capabilities": capabilities, "clientInfo": {"name": "test", "version": "1"}}});
        let url = format!("http://{}/mcp{query}", server.address);
        let request = server.http.post(url).bearer_auth(TOKEN).header("accept", BOTH).json(&opening);
        let response = request.send().await.expect("an answer");
        let id = response.headers()["mcp-session-id"].to_str().expect("text").to_owned();
        let opening = response.text().await.expect("a stream that ends");
        let session = Self { server, version, id, opening };
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(session.send(&ready).await.status(), 202);
        session
    }

    fn with(&self, request: RequestBuilder) -> RequestBuilder {
        request.bearer_auth(TOKEN).header("mcp-session-id", &self.id).header("mcp-protocol-version", self.version)
    }

    async fn send(&self, message: &Value) -> Response {
        self.send_accepting(BOTH, message).await
    }

    async fn send_accepting(&self, kinds: &str, message: &Value) -> Response {
        let url = format!("http://{}/mcp/", self.server.address);
        let request = self.with(self.server.http.post(url)).header("accept", kinds).json(message);
        request.send().await.expect("an answer")
    }

    async fn listen(&self, last_event_id: Option<&str>) -> Response {
        let url = format!("http://{}/mcp", self.server.address);
        let request = self.with(self.server.http.get(url)).header("accept", "text/event-stream");
        let request = last_event_id.iter().fold(request, |request, id| request.header("last-event-id", *id));
        request.send().await.expect("a stream")
    }

    async fn end(&self) -> StatusCode {
        let request = self.with(self.server.http.delete(format!("http://{}/mcp", self.server.address)));
        request.send().await.expect("an answer").status()
    }
}

fn run(id: u64, code: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "sandbox_run_code",
        "arguments": {"conversationId": "s", "language": "python", "code": code}, "_meta": {"progressToken": id}}})
}

/// Reads until this is in the text; the text up to then.
async fn text_until(response: &mut Response, part: &str) -> String {
    let mut text = String::new();
    while !text.contains(part) {
        let chunk = timeout(LONG, response.chunk()).await.unwrap_or_else(|_| panic!("{part} comes: {text}"));
        text.push_str(&String::from_utf8_lossy(&chunk.expect("a chunk").unwrap_or_else(|| panic!("{part}: {text}"))));
    }
    text
}

fn ids(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.strip_prefix("id:")).map(str::trim).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn first_event_without_data_is_sent_from_2025_11_25_on_only() {
    let server = FakeServer::start().await;
    for (version, primed) in [("2024-11-05", false), ("2025-03-26", false), ("2025-06-18", false), ("2025-11-25", true)]
    {
        let session = Session::open(&server, version, "").await;
        let called = session.send(&run(1, "print hi")).await.text().await.expect("a stream that ends");
        for (text, is_call) in [(&session.opening, false), (&called, true)] {
            let data: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim).collect();
            let empty = data.iter().filter(|data| data.is_empty()).count();
            let expected = usize::from(primed && is_call);
            assert_eq!(empty, expected, "{version}: {text}");
            assert!(data.iter().filter(|data| !data.is_empty()).all(|data| data.starts_with("{\"jsonrpc\"")), "{text}");
        }
        assert_eq!(called.contains("retry:"), primed, "{version}: {called}");
        let mut stream = session.listen(None).await;
        assert_eq!(session.end().await, 200);
        let rest = timeout(LONG, async { stream.chunk().await.ok().flatten() }).await.expect("it ends");
        assert_eq!(rest, None, "{version}: no empty event there either");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_one_token_share_no_variables() {
    let server = FakeServer::with_kernel(&[]).await;
    let execute = async |session: &Session<'_>, id: u64, code: &str| {
        let params = json!({"name": "execute_python_code", "arguments": {"command": code}});
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        session.send(&call).await.text().await.expect("a stream that ends")
    };
    let one = Session::open(&server, "2025-06-18", "").await;
    let two = Session::open(&server, "2025-06-18", "").await;
    execute(&one, 1, "set x 41").await;
    let others = execute(&two, 1, "get x").await;
    assert!(others.contains("name 'x' is not defined"), "{others}");
    let own = execute(&one, 2, "get x").await;
    assert!(own.contains("41\\n"), "{own}");
    assert_eq!((one.end().await, two.end().await), (StatusCode::OK, StatusCode::OK));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_that_came_while_the_client_was_away_is_delivered_when_it_returns() {
    let server = FakeServer::start().await;
    for version in ["2025-06-18", "2025-11-25"] {
        let session = Session::open(&server, version, "").await;
        let mut stream = session.send(&run(1, "print first\nsleep 200ms\nprint last")).await;
        let seen = text_until(&mut stream, "first\\n").await;
        drop(stream);
        let over = || server.mcp.runs.under_way() == 0;
        until("the run is over", async || over()).await;
        // Also when it returns before the end, and more than once.
        let last = ids(&seen).last().expect("an id").to_string();
        for _ in 0..2 {
            let resumed = session.listen(Some(&last)).await.text().await.expect("a stream that ends");
            assert!(resumed.contains("\"id\":1,\"result\"") && resumed.contains("last\\n"), "{version}: {resumed}");
            assert!(!ids(&resumed).contains(&last.as_str()), "{version}: {last} is repeated: {resumed}");
        }
        let mut stream = session.send(&run(2, "print first\nwait-file go\nprint last")).await;
        let last = ids(&text_until(&mut stream, "first\\n").await).last().expect("an id").to_string();
        drop(stream);
        let resumed = session.listen(Some(&last)).await;
        std::fs::write(server.root.join("s/files/go"), "").expect("written");
        let resumed = resumed.text().await.expect("a stream that ends");
        assert!(resumed.contains("\"id\":2,\"result\""), "{version}: {resumed}");
        for unknown in ["0/999", "x/1", "1/x", "99999999999999999999/1", "/"] {
            let nothing = session.listen(Some(unknown)).await.text().await.expect("a stream that ends");
            assert!(!nothing.contains("data:"), "{unknown}: {nothing}");
        }
        assert_eq!(session.end().await, 200);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_ends_a_session_and_its_runs_at_once() {
    let server = FakeServer::start().await;
    let session = Session::open(&server, "2025-06-18", "").await;
    // rmcp gives up the calls of a session that has ended after 5 s.
    let stream = session.send(&run(1, "write early x\nsleep 4s\nwrite late x")).await;
    let folder = server.root.join("s/files");
    until("it runs", async || folder.join("early").exists()).await;
    assert_eq!(session.end().await, 200);
    until("it is stopped", async || server.mcp.runs.under_way() == 0).await;
    assert!(!folder.join("late").exists(), "the program was stopped before its own end");
    drop(stream);
    assert_eq!(
        (session.end().await, session.send(&run(2, "print x")).await.status().as_u16()),
        (StatusCode::NOT_FOUND, 404)
    );
    let nameless = server.http.delete(format!("http://{}/mcp", server.address)).bearer_auth(TOKEN);
    assert_eq!(nameless.send().await.expect("an answer").status(), 400);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn query_of_the_first_request_holds_for_the_session() {
    let server = FakeServer::start().await;
    let session = Session::open(&server, "2025-06-18", "?names=dotted&structured=on&tools=run").await;
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let listed = messages(session.send(&list).await).await;
    let tools = listed[0]["result"]["tools"].as_array().expect("tools");
    assert!(
        tools.iter().all(|tool| tool["name"].as_str().is_some_and(|name| name.starts_with("sandbox."))),
        "{tools:?}"
    );
    assert!(tools.len() == 4 && tools.iter().all(|tool| tool["outputSchema"].is_object()), "{tools:?}");
    let called = messages(session.send(&run(2, "print hi")).await).await;
    assert_eq!(called.last().expect("an answer")["result"]["structuredContent"]["stdout"], "hi\n", "{called:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_are_taken_in_sessions_of_2025_03_26_only() {
    let server = FakeServer::start().await;
    let session = Session::open(&server, "2025-03-26", "").await;
    let ping = |id: u64| json!({"jsonrpc": "2.0", "id": id, "method": "ping"});
    let batch = json!([run(1, "print hi"), ping(2), {"jsonrpc": "2.0", "id": 3, "method": 7},
        {"jsonrpc": "2.0", "id": 4, "method": "initialize", "params": {}},
        {"jsonrpc": "2.0", "method": "notifications/nothing"}]);
    let answers = messages(session.send(&batch).await).await;
    let mut found: Vec<_> = answers.iter().filter(|answer| answer.get("id").is_some()).collect();
    found.sort_by_key(|answer| answer["id"].as_u64());
    assert_eq!(found.len(), 4, "{answers:?}");
    assert!(
        found[0]["result"]["content"][0]["text"].as_str().is_some_and(|text| text.starts_with("hi\n")),
        "{found:?}"
    );
    assert!(found[1]["result"].is_object(), "{found:?}");
    assert_eq!((&found[2]["error"]["code"], &found[3]["error"]["code"]), (&json!(-32600), &json!(-32600)), "{found:?}");
    // A cancellation in a batch reaches its call.
    let hanging = session.send(&run(9, "hang")).await;
    until("it runs", async || server.engine.live().len() == 1).await;
    let cancel = json!([{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}}]);
    assert_eq!(session.send(&cancel).await.status(), 202);
    until("it is stopped", async || server.engine.live().is_empty()).await;
    drop(hanging);
    // A gateway that reads the header has seen none but the ping.
    let named = session.with(server.http.post(format!("http://{}/mcp", server.address))).header("accept", BOTH);
    let named = named.header("mcp-method", "ping").json(&json!([ping(10), run(11, "print hi")]));
    let answers = messages(named.send().await.expect("an answer")).await;
    let codes: Vec<_> = answers.iter().map(|answer| (&answer["id"], &answer["error"]["code"])).collect();
    assert_eq!(codes.len(), 2, "{answers:?}");
    assert!(
        codes.contains(&(&json!(10), &Value::Null)) && codes.contains(&(&json!(11), &json!(-32020))),
        "{answers:?}"
    );
    let many = Value::Array((0..33).map(ping).collect());
    for refused in [json!([]), many] {
        assert_eq!(session.send(&refused).await.status(), 400, "{refused}");
    }
    let later = Session::open(&server, "2025-06-18", "").await;
    assert_eq!(later.send(&json!([ping(1)])).await.status(), 400);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_is_told_when_the_languages_change() {
    let server = FakeServer::start().await;
    let session = Session::open(&server, "2025-06-18", "").await;
    assert!(session.opening.contains("\"tools\":{\"listChanged\":true}"), "{}", session.opening);
    let mut stream = session.listen(None).await;
    // The task that follows the list starts after the 202 for `initialized`.
    let ping = json!({"jsonrpc": "2.0", "id": 5, "method": "ping"});
    session.send(&ping).await;
    server.engine.add_runner("ruby");
    text_until(&mut stream, CHANGED).await;
    // The same language with a kernel brings the tools of sessions.
    server.engine.add_kernel("ruby");
    text_until(&mut stream, CHANGED).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn subscribed_files_are_announced_when_a_run_changes_them() {
    let server = FakeServer::start().await;
    let session = Session::open(&server, "2025-06-18", "").await;
    let mut stream = session.listen(None).await;
    let subscribe = |id: u64, uri: &str| {
        let params = json!({"uri": uri});
        json!({"jsonrpc": "2.0", "id": id, "method": "resources/subscribe", "params": params})
    };
    let uri = "sandbox://files/s/out.csv";
    let subscribed = messages(session.send(&subscribe(1, uri)).await).await;
    assert!(subscribed[0]["result"].is_object(), "{subscribed:?}");
    let foreign = messages(session.send(&subscribe(2, "file:///etc/passwd")).await).await;
    assert_eq!(foreign[0]["error"]["code"], -32002, "{foreign:?}");
    messages(session.send(&run(3, "write other.csv 1\nwrite out.csv a,b")).await).await;
    let told = text_until(&mut stream, "notifications/resources/updated").await;
    assert!(told.contains(uri) && !told.contains("other.csv"), "{told}");
    // One too many.
    for number in 0..100 {
        let answer = messages(session.send(&subscribe(10, &format!("sandbox://files/s/{number}"))).await).await;
        assert_eq!(answer[0].get("error").is_some(), number == 99, "{number}: {answer:?}");
    }
    assert_eq!(session.end().await, 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_streams_are_forgotten_oldest_first() {
    let server = FakeServer::start().await;
    let session = Session::open(&server, "2025-11-25", "").await;
    let ping = json!({"jsonrpc": "2.0", "id": 5, "method": "ping"});
    let first = session.send(&ping).await.text().await.expect("text");
    let first = ids(&first)[0].to_owned();
    let again = async |id: &str| session.listen(Some(id)).await.text().await.expect("text");
    assert!(again(&first).await.contains("\"result\""));
    let mut last = String::new();
    for _ in 0..64 {
        last = session.send(&ping).await.text().await.expect("text");
    }
    assert!(!again(&first).await.contains("\"result\""), "the 65th newest is gone");
    assert!(again(ids(&last)[0]).await.contains("\"result\""));
    server.stop().await;
}

fn cell(code: &str, more: &Value) -> Value {
    let mut arguments = json!({"conversationId": "s", "language": "python", "code": code});
    arguments.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "sandbox_run_cell", "arguments": arguments}})
}

#[tokio::test(flavor = "multi_thread")]
async fn output_of_a_cell_is_progress_while_it_runs() {
    let server = FakeServer::with_kernel(&[]).await;
    let session = Session::open(&server, "2025-06-18", "").await;
    let mut call = cell("print first\nwait-file go\nprint last", &json!({}));
    call["params"]["_meta"] = json!({"progressToken": 1});
    let mut stream = session.send(&call).await;
    let told = text_until(&mut stream, "first\\n").await;
    assert!(told.contains("notifications/progress") && !told.contains("\"result\""), "{told}");
    std::fs::write(server.root.join("s/files/go"), "").expect("written");
    text_until(&mut stream, "last\\n").await;
    server.stop().await;
}

/// The id of the question on a call's stream, and its message.
async fn question(stream: &mut Response) -> (Value, String) {
    let mut text = String::new();
    loop {
        let chunk = timeout(LONG, stream.chunk()).await.expect("a question").expect("a chunk").expect("not the end");
        text.push_str(&String::from_utf8_lossy(&chunk));
        let asked = text.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data:")?).ok());
        if let Some(asked) = asked.into_iter().find(|message| message["method"] == "elicitation/create") {
            assert_eq!(asked["params"]["requestedSchema"]["properties"]["line"]["type"], "string");
            return (asked["id"].clone(), asked["params"]["message"].as_str().expect("text").to_owned());
        }
    }
}

/// The fake kernel prints the line that it got; the end of the input is the character 4.
#[tokio::test(flavor = "multi_thread")]
async fn input_of_a_cell_is_asked_of_a_client_that_shows_forms() {
    let server = FakeServer::with_kernel(&[]).await;
    let forms = json!({"elicitation": {}});
    let session = Session::open_as(&server, "2025-06-18", "", forms).await;
    for (answer, printed) in [
        (json!({"result": {"action": "accept", "content": {"line": "Ada\nL"}}}), "Ada L\\n"),
        (json!({"result": {"action": "accept", "content": {}}}), "\"text\":\"\\n"),
        (json!({"result": {"action": "decline"}}), "\\u0004"),
        (json!({"result": {"action": "cancel"}}), "\\u0004"),
        (json!({"result": {"action": "accept", "content": {"line": "x".repeat(1_100_000)}}}), "\\u0004"),
        (json!({"error": {"code": -32603, "message": "no"}}), "\\u0004"),
    ] {
        let mut stream = session.send(&cell("ask who is it?", &json!({}))).await;
        let (id, message) = question(&mut stream).await;
        assert_eq!(message, "The program in the sandbox asks: who is it?");
        let mut reply = answer.clone();
        reply["jsonrpc"] = json!("2.0");
        reply["id"] = id;
        assert_eq!(session.send(&reply).await.status(), 202);
        let text = text_until(&mut stream, "\"id\":1").await;
        assert!(text.contains(printed), "{printed}: {text}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn question_is_withdrawn_when_its_call_returns_and_not_asked_where_input_came_with_the_call() {
    let server = FakeServer::with_kernel(&[]).await;
    let session = Session::open_as(&server, "2025-06-18", "", json!({"elicitation": {"form": {}}})).await;
    let mut own = session.listen(None).await;
    let mut stream = session.send(&cell("ask who?", &json!({"waitSeconds": 1}))).await;
    question(&mut stream).await;
    let text = text_until(&mut stream, "\"id\":1").await;
    assert!(text.contains("sandbox_get_run"), "{text}");
    text_until(&mut own, "notifications/cancelled").await;
    until("the end of the input ends the cell", async || server.mcp.runs.under_way() == 0).await;
    let given = session.send(&cell("ask who?", &json!({"stdin": "Ada\n"}))).await.text().await.expect("a stream");
    assert!(given.contains("Ada\\n") && !given.contains("elicitation"), "{given}");
    // A client that shows no forms is not asked; a real kernel then raises an error.
    let links = Session::open_as(&server, "2025-06-18", "", json!({"elicitation": {"url": {}}})).await;
    let called = links.send(&cell("print hi", &json!({}))).await.text().await.expect("a stream");
    assert!(called.contains("hi\\n"), "{called}");
    server.stop().await;
}
