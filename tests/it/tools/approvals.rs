//! Questions to a person: an answer holds for exactly what was asked.

use std::time::Duration;

use mcp_sandbox_server::{
    domain::clock::{Clock as _, SystemClock},
    ports::engine::{Engine as _, Listed},
};
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    Sdk, call, get, printed, put, run, server, token_of,
    upstream::{Upstream, tool},
};
use crate::support::{
    FakeServer,
    calls::{ask, request},
    server::{Server, TOKEN},
    socket::Socket,
    until,
};

fn delete(path: &str) -> String {
    format!(
        "import mcptools\ntry: print(mcptools.call('files', 'delete_file', {{'path': '{path}'}}).text)\n\
         except mcptools.ToolError as error: print(error.code, error)\n"
    )
}

/// The question that waits.
async fn question(server: &Server, token: &str) -> Value {
    let list = async || get(server, token, "/v1/approvals?open=true").await["approvals"].clone();
    until("a question waits", async || list().await.as_array().is_some_and(|list| list.len() == 1)).await;
    list().await[0].clone()
}

async fn answer(server: &Server, token: &str, question: &Value, answer: &str) -> (u16, Value) {
    let path = format!("/v1/approvals/{}", question["id"].as_str().expect("an id"));
    call(server, token, Method::POST, &path, json!({"answer": answer})).await
}

/// A program that asks, and its answer; what it printed.
async fn asked(server: &Server, path: &str, word: &str) -> String {
    let code = delete(path);
    let (text, ()) = tokio::join!(printed(server, TOKEN, "python", &code), async {
        let question = question(server, TOKEN).await;
        assert_eq!(question["arguments"], json!({"path": path}).to_string());
        assert_eq!(answer(server, TOKEN, &question, word).await.0, 200);
        assert_eq!(answer(server, TOKEN, &question, "always").await.0, 404, "the first answer counts");
    });
    text
}

/// Four processes ask sixteen questions each at once.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_has_twenty_open_questions_however_fast_they_come() {
    let upstream = Upstream::start(json!([{"name": "send", "inputSchema": {"type": "object"}}])).await;
    let server = server(&[("SANDBOX_TOOL_CALLS__ASK_S", "15")]).await;
    put(&server, "up", json!({"url": upstream.url})).await;
    let code = "import mcptools, os, threading\n\
        first = 0\n\
        for at in (16, 32, 48):\n    if os.fork() == 0:\n        first = at; break\n\
        def ask(n):\n    try: mcptools.call('up', 'send', {'n': n})\n\
        \x20   except mcptools.ToolError: pass\n\
        threads = [threading.Thread(target=ask, args=(first + n,)) for n in range(16)]\n\
        [one.start() for one in threads]; [one.join() for one in threads]\n\
        if first: os._exit(0)\n\
        for _ in range(3): os.wait()\n";
    assert_eq!(printed(&server, TOKEN, "python", code).await, "");
    let asked = get(&server, TOKEN, "/v1/approvals").await["approvals"].clone();
    assert_eq!(asked.as_array().map(Vec::len), Some(20), "{asked}");
    assert!(upstream.calls().is_empty());
    server.stop().await;
}

/// Takes an answer back while a program calls as fast as it can: what is decided later is decided without it.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_after_an_answer_was_taken_back_is_not_made() {
    let upstream = Upstream::start(json!([{"name": "send", "inputSchema": {"type": "object"}}])).await;
    let server = server(&[]).await;
    put(&server, "up", json!({"url": upstream.url})).await;
    let code = "import mcptools, threading\n\
        def many():\n    try:\n        while True: mcptools.call('up', 'send')\n\
        \x20   except mcptools.ToolError as error: print(error.code)\n\
        mcptools.call('up', 'send')\n\
        threads = [threading.Thread(target=many) for _ in range(4)]\n\
        [one.start() for one in threads]; [one.join() for one in threads]\n";
    for round in 0..5 {
        let before = upstream.calls().len();
        let person = async {
            let first = question(&server, TOKEN).await;
            assert_eq!(answer(&server, TOKEN, &first, "always").await.0, 200);
            until("it calls", async || upstream.calls().len() > before + 20 + round * 13).await;
            let path = format!("/v1/approvals/{}", first["id"].as_str().expect("an id"));
            assert_eq!(call(&server, TOKEN, Method::DELETE, &path, None).await.0, 204);
            let made = upstream.calls().len();
            // What was allowed before is sent, at most one call of each thread. Then they ask.
            loop {
                let open = get(&server, TOKEN, "/v1/approvals?open=true").await["approvals"].clone();
                for one in open.as_array().expect("questions") {
                    answer(&server, TOKEN, one, "no").await;
                }
                let after = upstream.calls().len();
                assert!(after <= made + 4, "{made}, and then {after}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let text = tokio::select! {
            text = printed(&server, TOKEN, "python", code) => text,
            () = person => unreachable!("it answers for ever"),
        };
        assert_eq!(text, "tool_denied\n".repeat(4));
    }
    server.stop().await;
}

/// A program may write the name of a tool as that of its module; clients compare the events.
#[tokio::test(flavor = "multi_thread")]
async fn a_question_and_the_event_of_its_call_have_the_servers_name_of_the_tool() {
    let upstream = Upstream::start(json!([{"name": "Send-it", "inputSchema": {"type": "object"}}])).await;
    let server = server(&[]).await;
    put(&server, "up", json!({"url": upstream.url})).await;
    let code = "import mcptools\nprint(mcptools.call('up', 'send_it').text)";
    let (run, ()) = tokio::join!(run(&server, TOKEN, "spelled", "python", code), async {
        let question = question(&server, TOKEN).await;
        assert_eq!(answer(&server, TOKEN, &question, "once").await.0, 200);
    });
    assert_eq!(run["result"]["stdout"], "done\n", "{run}");
    let path = format!("/v1/runs/{}/events", run["runId"].as_str().expect("an id"));
    let events = request(&server, TOKEN, Method::GET, &path).send().await.expect("an answer").text().await;
    let events = events.expect("a stream that ends");
    let events: Vec<Value> =
        events.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data:")?).ok()).collect();
    let named = |kind: &str| {
        let event = events.iter().find(|event| event["kind"] == kind).unwrap_or_else(|| panic!("{kind}: {events:?}"));
        event[kind]["tool"].clone()
    };
    assert_eq!((named("approval"), named("tool")), (json!("Send-it"), json!("Send-it")));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_are_for_owners() {
    let upstream = Upstream::start(json!([tool("echo")])).await;
    let server = server(&[]).await;
    let rules = json!([{"tool": "*", "action": "deny", "owners": ["ann"]}]);
    put(&server, "up", json!({"url": upstream.url, "rules": rules})).await;
    let [ann, ben] = ["ann", "ben"].map(|name| token_of(&server, name, &["run", "files"]));
    let (ann, ben) = tokio::join!(ann, ben);
    let code = "import mcptools\ntry: print(mcptools.call('up', 'echo').text)\n\
        except mcptools.ToolError as error: print(error.code)\n";
    assert_eq!(printed(&server, &ann, "python", code).await, "tool_denied\n");
    assert_eq!(printed(&server, &ben, "python", code).await, "done\n");
    assert_eq!(upstream.calls().len(), 1);
    let wrong =
        json!({"server": {"url": upstream.url, "rules": [{"tool": "*", "action": "deny", "owners": ["../a"]}]}});
    assert_eq!(call(&server, TOKEN, Method::PUT, "/v1/tool-servers/up", wrong).await.0, 422);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notebooks_cell_says_that_it_waits_for_an_answer() {
    let sdk = Sdk::start("mcp2").await;
    let server = server(&[]).await;
    put(&server, "files", json!({"url": sdk.url})).await;
    let wanted = json!({"name": "python"});
    let (_, kernel) = call(&server, TOKEN, Method::POST, "/jupyter/api/kernels", wanted).await;
    let path = format!("/jupyter/t/{TOKEN}/api/kernels/{}/channels", kernel["id"].as_str().expect("an id"));
    let mut client = Socket::connect(server.address, &path, &[]).await.expect("a connection");
    let cell = client.execute(&delete("/once")).await;
    let is_told =
        |message: &Value, what: &str| message["content"]["text"].as_str().is_some_and(|text| text.contains(what));
    let asked = client.until(|message| is_told(message, "until a person allows it to call files/delete_file")).await;
    let question = question(&server, TOKEN).await;
    let told = asked.last().expect("a line");
    assert!(is_told(told, question["id"].as_str().expect("an id")), "{told}");
    assert_eq!(told["parent_header"]["msg_id"], cell);
    assert_eq!(answer(&server, TOKEN, &question, "once").await.0, 200);
    let answers = client.answers(&cell).await;
    assert!(answers.iter().any(|message| is_told(message, "deleted /once")), "{answers:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_holds_for_what_was_asked() {
    let sdk = Sdk::start("mcp2").await;
    let server = server(&[]).await;
    put(&server, "files", json!({"url": sdk.url})).await;
    assert_eq!(asked(&server, "/once", "once").await, "deleted /once\n");
    assert_eq!(
        asked(&server, "/once", "no").await,
        "tool_denied delete_file was not called: a person said no (default by api).\n",
        "once was for one call"
    );
    assert_eq!(asked(&server, "/other", "session").await, "deleted /other\n");
    assert_eq!(printed(&server, TOKEN, "python", &delete("/third")).await, "deleted /third\n");
    // Not in another conversation.
    let code = delete("/fourth");
    let elsewhere = async {
        let run = run(&server, TOKEN, "elsewhere", "python", &code).await;
        run["result"]["stdout"].as_str().unwrap_or_else(|| panic!("{run}")).to_owned()
    };
    let (text, always) = tokio::join!(elsewhere, async {
        let question = question(&server, TOKEN).await;
        assert_eq!(answer(&server, TOKEN, &question, "always").await.0, 200);
        question
    });
    assert_eq!(text, "deleted /fourth\n");
    let path = format!("/v1/approvals/{}", always["id"].as_str().expect("an id"));
    assert_eq!(call(&server, TOKEN, Method::DELETE, &path, None).await.0, 204);
    assert_eq!(call(&server, TOKEN, Method::DELETE, &path, None).await.0, 404);
    let text = {
        let code = delete("/fifth");
        let (run, ()) = tokio::join!(run(&server, TOKEN, "elsewhere", "python", &code), async {
            let question = question(&server, TOKEN).await;
            assert_eq!(answer(&server, TOKEN, &question, "no").await.0, 200);
        });
        run["result"]["stdout"].clone()
    };
    assert!(text.as_str().expect("text").starts_with("tool_denied"), "it was taken back: {text}");
    assert_eq!(sdk.deleted(), ["/once", "/other", "/third", "/fourth"]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clock_stands_while_a_person_is_asked_and_a_question_outlives_its_program() {
    let sdk = Sdk::start("mcp2").await;
    let server = server(&[("SANDBOX_LIMITS__WALL_MS", "10000"), ("SANDBOX_TOOL_CALLS__ASK_S", "20")]).await;
    put(&server, "files", json!({"url": sdk.url})).await;
    let code = delete("/late");
    let (text, ()) = tokio::join!(printed(&server, TOKEN, "python", &code), async {
        let question = question(&server, TOKEN).await;
        // Longer than it may take.
        tokio::time::sleep(Duration::from_secs(11)).await;
        assert_eq!(answer(&server, TOKEN, &question, "once").await.0, 200);
    });
    assert_eq!(text, "deleted /late\n");
    let waits = printed(&server, TOKEN, "python", &delete("/unanswered")).await;
    assert!(waits.contains("did not answer within 20 s"), "{waits}");
    // The program is cancelled, its question is answered, and the same call later passes without another.
    let body = json!({"conversationId": "tools", "language": "python", "code": delete("/later"), "detach": true,
        "wait": 0});
    let (_, begun) = call(&server, TOKEN, Method::POST, "/v1/runs", body).await;
    let asked = question(&server, TOKEN).await;
    let run = begun["runId"].as_str().unwrap_or_else(|| panic!("{begun}"));
    call(&server, TOKEN, Method::POST, &format!("/v1/runs/{run}/cancel"), None).await;
    let path = format!("/v1/runs/{run}");
    until("it has ended", async || get(&server, TOKEN, &path).await["state"] == "finished").await;
    assert_eq!(answer(&server, TOKEN, &asked, "once").await.0, 200);
    assert_eq!(printed(&server, TOKEN, "python", &delete("/later")).await, "deleted /later\n");
    assert_eq!(sdk.deleted(), ["/late", "/later"]);
    server.stop().await;
}

/// An engine may end a sandbox at its deadline, so that leaves room for all questions of a program.
#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_live_as_long_as_a_program_may_wait_for_answers() {
    // None lives long for another reason.
    let short = [("SANDBOX_STANDBY__AGE_S", "10"), ("SANDBOX_SESSIONS__AGE_S", "1")];
    let standby = [("SANDBOX_STANDBY__TOTAL_MAX", "1"), ("SANDBOX_STANDBY__NAMELESS_MAX", "0")];
    let server = FakeServer::with_kernel(&[short, standby].concat()).await;
    let upstream = Upstream::start(json!([tool("look")])).await;
    let made = ask(&server, Method::PUT, "/v1/tool-servers/t", json!({"server": {"url": upstream.url}})).await;
    assert_eq!(made.0, 204, "{made:?}");
    let lives_long = |one: &Listed| one.deadline_unix_s > SystemClock.unix_s() + 3600;
    let asked = json!({"conversationId": "c", "language": "python", "code": "hang", "wait": 0});
    let (_, begun) = ask(&server, Method::POST, "/v1/runs", asked).await;
    let path = format!("/v1/runs/{}", begun["runId"].as_str().expect("an id"));
    // One that is cancelled before its program runs makes no standby wanted.
    until("it runs", async || ask(&server, Method::GET, &path, None).await.1["state"] == "running").await;
    let listed = server.engine.list().await.expect("a list");
    assert!(listed.iter().any(lives_long), "{listed:?}");
    assert_eq!(ask(&server, Method::POST, &format!("{path}/cancel"), None).await.0, 200);
    // One may stand by already.
    until("one stands by", async || {
        let now = server.engine.list().await.expect("a list");
        let is_new = |one: &Listed| listed.len() > 1 || listed.iter().all(|other| other.id != one.id);
        now.iter().any(|one| is_new(one) && lives_long(one))
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_see_and_answer_their_own_questions() {
    let sdk = Sdk::start("mcp2").await;
    let server = server(&[]).await;
    put(&server, "files", json!({"url": sdk.url, "owners": ["ann", "ben"]})).await;
    put(&server, "hers", json!({"url": sdk.url, "owners": ["ann"]})).await;
    let ann = token_of(&server, "ann", &["run", "files"]).await;
    let hers = token_of(&server, "ann", &["approve"]).await;
    let his = token_of(&server, "ben", &["run", "files", "approve"]).await;
    assert_eq!(get(&server, &his, "/v1/tools").await["servers"].as_array().expect("a list").len(), 1);
    let text = printed(&server, &his, "python", "import mcptools\nmcptools.call('hers', 'echo', {'text': 'a'})").await;
    assert!(text.contains("There is no tool server `hers`; there are: files."), "{text}");
    let code = delete("/hers");
    let (text, ()) = tokio::join!(printed(&server, &ann, "python", &code), async {
        let asked = question(&server, &hers).await;
        assert_eq!(get(&server, &his, "/v1/approvals").await, json!({"approvals": []}));
        assert_eq!(answer(&server, &his, &asked, "always").await.0, 404, "another owner's");
        assert_eq!(answer(&server, &ann, &asked, "always").await.0, 403, "its token may not answer");
        assert_eq!(answer(&server, &hers, &asked, "always").await.0, 200);
    });
    assert_eq!(text, "deleted /hers\n");
    let code = delete("/his");
    let (text, ()) = tokio::join!(printed(&server, &his, "python", &code), async {
        let asked = question(&server, &his).await;
        assert_eq!(answer(&server, &his, &asked, "no").await.0, 200);
    });
    assert!(text.starts_with("tool_denied"), "always was hers: {text}");
    assert_eq!(sdk.deleted(), ["/hers"]);
    server.stop().await;
}
