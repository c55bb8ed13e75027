//! Sessions over REST, MCP and CodeRunner's interface, on the fake engine; the cases named `real_` run real kernels.

use futures_util::future::join_all;
use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::{
    mcp_clients::{client, tool},
    support::{FakeServer, Server, calls::ask, server::TOKEN, until},
};

/// The cells of the clients: they set a variable, show a value made of it, and fail; and that value.
const FAKE: [&str; 4] = ["set x 41", "get x", "raise ValueError no", "41"];
const REAL: [&str; 4] = ["a = 41", "a + 1", "raise ValueError('no')", "42"];

async fn read(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let bytes = response.bytes().await.expect("a body");
    (status, if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).expect("JSON") })
}

async fn post(server: &FakeServer, path: &str, body: Value) -> (u16, Value) {
    ask(server, Method::POST, path, Some(body)).await
}

async fn open(server: &FakeServer, body: Value) -> String {
    let (status, session) = post(server, "/v1/sessions", body).await;
    assert_eq!((status, &session["state"], &session["status"]), (201, &json!("idle"), &json!("active")), "{session}");
    assert_eq!(session["sessionId"], session["session_id"]);
    format!("/v1/sessions/{}", session["sessionId"].as_str().expect("an id"))
}

async fn cell(server: &FakeServer, session: &str, code: &str) -> Value {
    let (status, run) = post(server, &format!("{session}/cells"), json!({"code": code})).await;
    assert_eq!((status, &run["cell"]), (200, &json!(true)), "{run}");
    run["result"].clone()
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().expect("a text first")
}

#[tokio::test(flavor = "multi_thread")]
async fn rest_session_keeps_variables_until_it_is_restarted_or_closed() {
    let server = FakeServer::with_kernel(&[]).await;
    let (_, none) = ask(&server, Method::GET, "/v1/sessions", None).await;
    assert_eq!(none, json!({"sessions": []}));
    let session = open(&server, json!({"conversationId": "a"})).await;
    assert_eq!(open(&server, json!({"conversationId": "a", "language": "Python"})).await, session, "the open one");
    cell(&server, &session, "set x 41\nwrite f text").await;
    let shown = cell(&server, &session, "get x").await;
    assert_eq!((&shown["stdout"], &shown["conversationId"]), (&json!("41\n"), &json!("a")));
    let failed = cell(&server, &session, "raise ValueError no").await;
    assert_eq!(failed["outcome"]["exitCode"], 1, "{failed}");
    let other = open(&server, json!({})).await;
    assert!(cell(&server, &other, "get x").await["stderr"].as_str().expect("text").contains("NameError"));
    let (_, of_a) = ask(&server, Method::GET, "/v1/sessions?conversationId=a", None).await;
    assert_eq!((of_a["sessions"].as_array().map(Vec::len), &of_a["sessions"][0]["cells"]), (Some(1), &json!(3)));

    let (status, matches) = post(&server, &format!("{session}/complete"), json!({"code": "x"})).await;
    assert_eq!((status, &matches["matches"]), (200, &json!(["x"])), "{matches}");
    let (status, full) = post(&server, &format!("{session}/complete"), json!({"code": "full"})).await;
    assert_eq!((status, &full["code"]), (409, &json!("session_busy")), "{full}");
    let (status, about) = post(&server, &format!("{session}/inspect"), json!({"code": "x", "detailed": true})).await;
    assert_eq!((status, &about["found"]), (200, &json!(true)), "{about}");

    let (status, again) = ask(&server, Method::POST, &format!("{session}/restart"), None).await;
    assert_eq!((status, &again["cells"]), (200, &json!(0)), "{again}");
    let gone = cell(&server, &session, "get x").await;
    assert!(gone["stderr"].as_str().expect("text").contains("NameError"), "{gone}");
    let (status, closed) = ask(&server, Method::DELETE, &session, None).await;
    assert_eq!((status, &closed["state"], &closed["status"]), (200, &json!("ended"), &json!("stopped")));
    for (method, below) in [(Method::GET, ""), (Method::DELETE, ""), (Method::POST, "/interrupt")] {
        let (status, why) = ask(&server, method, &format!("{session}{below}"), None).await;
        assert_eq!((status, &why["code"]), (410, &json!("session_ended")), "{why}");
        assert!(why["detail"].as_str().expect("a sentence").contains("it was closed"), "{why}");
    }
    let (status, why) = post(&server, &format!("{session}/cells"), json!({"code": "get x"})).await;
    assert_eq!((status, &why["code"]), (410, &json!("session_ended")), "{why}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rest_cell_is_a_run_that_is_detached_interrupted_and_sent_once() {
    let server = FakeServer::with_kernel(&[]).await;
    let session = open(&server, json!({})).await;
    cell(&server, &session, "set x 41").await;
    let (status, left) = post(&server, &format!("{session}/cells"), json!({"code": "hang", "wait": 0})).await;
    assert_eq!(status, 202, "{left}");
    let run = format!("/v1/runs/{}", left["runId"].as_str().expect("an id"));
    until("it runs", async || ask(&server, Method::GET, &run, None).await.1["state"] == "running").await;
    assert_eq!(ask(&server, Method::GET, &session, None).await.1["state"], "busy");
    assert_eq!(ask(&server, Method::POST, &format!("{session}/interrupt"), None).await, (204, Value::Null));
    until("it ended", async || ask(&server, Method::GET, &run, None).await.1["state"] == "finished").await;

    let limited = json!({"code": "hang", "limits": {"wallMs": 300}});
    let (_, late) = post(&server, &format!("{session}/cells"), limited).await;
    assert_eq!(late["outcome"]["ended"], "timed_out", "{late}");
    assert_eq!(cell(&server, &session, "get x").await["stdout"], "41\n", "the variables live on");

    let once = async |path: &str| {
        let request = server.http.post(format!("http://{}{path}/cells", server.address)).bearer_auth(TOKEN);
        let request = request.header("Idempotency-Key", "k").json(&json!({"code": "print once"}));
        read(request.send().await.expect("an answer")).await
    };
    let ((status, first), (_, second)) = (once(&session).await, once(&session).await);
    assert_eq!((status, &first["runId"]), (200, &second["runId"]), "{second}");
    let elsewhere = open(&server, json!({})).await;
    let (status, refused) = once(&elsewhere).await;
    assert_eq!((status, &refused["code"]), (422, &json!("idempotency_key_reused")), "{refused}");
    ask(&server, Method::DELETE, &session, None).await;
    assert_eq!(once(&session).await.1["runId"], first["runId"], "also when the session is over");

    let asks = json!({"code": "ask name?", "stdin": "Ada\n"});
    let (_, asked) = post(&server, &format!("{elsewhere}/cells"), asks).await;
    assert!(asked["result"]["stdout"].as_str().expect("text").contains("Ada"), "{asked}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rest_refuses_what_is_wrong() {
    let server = FakeServer::with_kernel(&[]).await;
    let session = open(&server, json!({})).await;
    let cells = format!("{session}/cells");
    let unknown = format!("/v1/sessions/session-{}", "0".repeat(32));
    for (path, body, status) in [
        ("/v1/sessions", json!({"language": "none"}), 422),
        ("/v1/sessions", json!({"conversationId": "../x"}), 422),
        ("/v1/sessions", json!({"what": 1}), 422),
        (&cells, json!({"code": ""}), 422),
        (&cells, json!({"code": "x", "language": "python"}), 422),
        (&cells, json!({"code": "x", "conversationId": "a"}), 422),
        (&cells, json!({"code": "x", "args": []}), 422),
        (&cells, json!({"code": "x", "limits": {"memoryBytes": 1}}), 422),
        (&cells, json!({"code": "x", "limits": {"wallMs": 0}}), 422),
        (&format!("{session}/complete"), json!({}), 422),
        (&format!("{session}/complete"), json!({"code": "x".repeat((256 << 10) + 1)}), 413),
        (&format!("{session}/inspect"), json!({"code": "x".repeat((256 << 10) + 1)}), 413),
        (&format!("{unknown}/cells"), json!({"code": "x"}), 404),
        (&format!("{unknown}/complete"), json!({"code": "x"}), 404),
        ("/v1/sessions/x/cells", json!({"code": "x"}), 422),
    ] {
        let (got, why) = post(&server, path, body.clone()).await;
        assert_eq!(got, status, "{path} {body}: {why}");
        assert!(why["detail"].is_string() && why["code"].is_string(), "{why}");
    }
    // A position outside the code, in characters of several bytes.
    for cursor in [0, 1, 5, u64::MAX] {
        let (status, _) = post(&server, &format!("{session}/complete"), json!({"code": "€€", "cursor": cursor})).await;
        assert_eq!(status, 200);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_full_is_said_when_all_are_busy() {
    let server = FakeServer::with_kernel(&[("SANDBOX_SESSIONS__MEMORY_BYTES_MAX", "268435456")]).await;
    let session = open(&server, json!({})).await;
    let (_, left) = post(&server, &format!("{session}/cells"), json!({"code": "hang", "wait": 0})).await;
    let run = format!("/v1/runs/{}", left["runId"].as_str().expect("an id"));
    until("it runs", async || ask(&server, Method::GET, &run, None).await.1["state"] == "running").await;
    let (status, why) = post(&server, "/v1/sessions", json!({})).await;
    assert_eq!((status, &why["code"]), (503, &json!("sessions_full")), "{why}");
    ask(&server, Method::POST, &format!("{run}/cancel"), None).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mcp_cells_share_variables_in_a_conversation() {
    let server = FakeServer::with_kernel(&[]).await;
    let first = server.call("sandbox_run_cell", json!({"code": "set x 41\nwrite f text"})).await;
    assert!(text(&first).contains("to find these variables and files again"), "{first}");
    let id = text(&first).split_once("The conversationId is ").expect("its name").1;
    let id = id.split(':').next().expect("an id");
    let next = server.call("sandbox.run_cell", json!({"conversationId": id, "code": "get x"})).await;
    assert!(text(&next).starts_with("41\n") && next["isError"] == false, "{next}");
    let listed = server.call("sandbox_list_sessions", json!({"conversationId": id})).await;
    assert!(text(&listed).starts_with("- python (session-") && text(&listed).contains("2 cells"), "{listed}");
    let args = json!({"conversationId": "another"});
    assert_eq!(text(&server.call("sandbox_interrupt", args).await), "No session is open there.");
    let late = json!({"conversationId": id, "code": "hang", "timeoutSeconds": 1});
    let late = server.call("sandbox_run_cell", late).await;
    assert!(text(&late).contains("time limit of 1 s") && late["isError"] == true, "{late}");
    let kept = server.call("sandbox_run_cell", json!({"conversationId": id, "code": "get x"})).await;
    assert!(text(&kept).starts_with("41\n"), "{kept}");

    let show = json!({"conversationId": id, "code": "show text/markdown *rich*\nshow image/svg+xml <svg/>"});
    let shown = server.call("sandbox_run_cell", show).await;
    assert!(text(&shown).starts_with("*rich*\n") && text(&shown).contains("-1.svg"), "{shown}");
    let blocks = shown["content"].as_array().expect("blocks").iter();
    let kinds: Vec<_> = blocks.filter_map(|block| block["type"].as_str()).collect();
    assert!(kinds.contains(&"resource_link") && !kinds.contains(&"image"), "a drawing is a file: {shown}");

    let hang = json!({"conversationId": id, "code": "hang", "waitSeconds": 0});
    let left = server.call("sandbox_run_cell", hang).await;
    assert!(text(&left).contains("sandbox_get_run"), "{left}");
    let of = || json!({"conversationId": id});
    let is_busy = async || text(&server.call("sandbox_list_sessions", of()).await).contains(": busy");
    until("the cell runs", is_busy).await;
    assert!(text(&server.call("sandbox_interrupt", of()).await).starts_with("Interrupted"));
    until("the cell ended", async || !is_busy().await).await;
    assert!(text(&server.call("sandbox_reset_session", of()).await).starts_with("All variables are gone"));
    let gone = server.call("sandbox_run_cell", json!({"conversationId": id, "code": "get x"})).await;
    assert!(text(&gone).contains("NameError") && gone["isError"] == true, "{gone}");
    let nothing = json!({"conversationId": "other"});
    assert!(text(&server.call("sandbox_list_sessions", nothing).await).starts_with("No session"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mcp_tools_of_coderunner_and_ipybox_keep_variables() {
    let server = FakeServer::with_kernel(&[]).await;
    let executed = server.call("execute_python_code", json!({"command": "set x 41\nwrite f text"})).await;
    assert!(text(&executed).contains("- f (") && executed["isError"] == false, "{executed}");
    assert_eq!(executed["content"].as_array().map(Vec::len), Some(1), "plain text: {executed}");
    assert_eq!(text(&server.call("execute_ipython_cell", json!({"code": "get x"})).await), "41\n");
    assert!(text(&server.call("get_kernel_status", json!({})).await).contains("2 cells"));
    let late = server.call("execute_ipython_cell", json!({"code": "hang", "timeout": 1})).await;
    assert!(text(&late).contains("time limit of 1 s") && late["isError"] == true, "{late}");
    let late = server.call("execute_ipython_cell", json!({"code": "hang", "timeout": 0.5})).await;
    assert!(text(&late).contains("time limit of 0.500 s") && late["isError"] == true, "{late}");
    let never = server.call("execute_ipython_cell", json!({"code": "get x", "timeout": 0})).await;
    assert!(text(&never).contains("timeout") && never["isError"] == true, "{never}");
    let many = format!("print {}", "y".repeat(5000));
    let cut = server.call("execute_ipython_cell", json!({"code": many, "max_output_chars": 100})).await;
    assert!(text(&cut).len() < 300 && text(&cut).contains("left out here: sandbox_get_run"), "{cut}");
    let wide = json!({"code": format!("print {}", "é".repeat(99)), "max_output_chars": 100});
    let wide = server.call("execute_ipython_cell", wide).await;
    assert_eq!(text(&wide), "é".repeat(99) + "\n", "100 characters, which are more bytes");
    let install = server.call("install_package", json!({"package_name": "x"})).await;
    assert!(text(&install).contains("no index of packages") && install["isError"] == true, "{install}");
    assert!(text(&server.call("reset", json!({})).await).starts_with("All variables are gone"));
    let gone = server.call("execute_python_code", json!({"command": "get x"})).await;
    assert!(text(&gone).contains("NameError") && gone["isError"] == true, "{gone}");
    let bash = server.call("execute_bash_code", json!({"command": "print hi"})).await;
    assert!(text(&bash).contains("bash") && bash["isError"] == true, "there is no kernel for it: {bash}");
    let list = async |query: &str| {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
        let list = read(server.post_to(query, body.to_string()).send().await.expect("an answer")).await.1;
        let tools = list["result"]["tools"].as_array().expect("tools").clone();
        tools.iter().map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        list("?tools=coderunner&structured=on").await,
        ["execute_python_code", "execute_bash_code", "get_kernel_status"]
    );
    assert_eq!(
        list("?tools=ipybox").await,
        ["execute_ipython_cell", "install_package", "register_mcp_server", "reset"]
    );
    assert_eq!(list("?tools=session&names=dotted").await[0], "sandbox.run_cell");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_are_those_of_the_session_that_set_them() {
    let server = FakeServer::with_kernel(&[("SANDBOX_ADMISSION__QUEUE_MAX", "200")]).await;
    join_all((0..6).map(async |n| {
        let session = open(&server, json!({"conversationId": format!("c{n}")})).await;
        cell(&server, &session, &format!("set secret {n}")).await;
        for _ in 0..5 {
            assert_eq!(cell(&server, &session, "get secret").await["stdout"], format!("{n}\n"));
        }
    }))
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn coderunners_table_holds() {
    let server = FakeServer::with_kernel(&[]).await;
    let base = format!("http://{}", server.address);
    let arguments = [&["coderunner_client.py", base.as_str(), TOKEN][..], &FAKE].concat();
    client("python3".as_ref(), &arguments).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_vendors_sdk_works_unchanged() {
    let python = tool("instavm/bin/python");
    let server = FakeServer::with_kernel(&[]).await;
    let base = format!("http://{}", server.address);
    client(&python, &[&["instavm_client.py", base.as_str(), TOKEN][..], &FAKE].concat()).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn real_kernel_serves_coderunners_clients() {
    let python = tool("instavm/bin/python");
    let server = Server::start().await;
    let base = server.url("");
    client("python3".as_ref(), &[&["coderunner_client.py", base.as_str(), TOKEN][..], &REAL].concat()).await;
    client(&python, &[&["instavm_client.py", base.as_str(), TOKEN][..], &REAL].concat()).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn real_cells_remember_on_every_surface() {
    let server = Server::start().await;
    let http = crate::support::http::client();
    let ask = async |method: Method, path: &str, body: Value| {
        let request = http.request(method, server.url(path)).bearer_auth(TOKEN).json(&body);
        read(request.send().await.expect("an answer")).await.1
    };
    let tool = async |name: &str, arguments: Value| {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": name, "arguments": arguments}});
        ask(Method::POST, "/mcp", call).await["result"].clone()
    };
    let native = async |code: &str| tool("sandbox_run_cell", json!({"conversationId": "n", "code": code})).await;
    native("a = 41").await;
    assert!(text(&native("a + 1").await).starts_with("42\n"));
    let late = json!({"conversationId": "n", "code": "while True: pass", "timeoutSeconds": 1});
    assert_eq!(tool("sandbox_run_cell", late).await["isError"], true);
    assert!(text(&native("a").await).starts_with("41\n"), "the variables live on");
    assert!(text(&native("import asyncio; await asyncio.sleep(0); 'awaited'").await).contains("awaited"));
    assert!(text(&native("!echo from the shell").await).contains("from the shell"));
    let plot = native("import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()").await;
    let blocks = plot["content"].as_array().expect("content");
    assert!(blocks.iter().any(|block| block["type"] == "image"), "{plot}");
    let bar = native("from tqdm.auto import tqdm\nfor _ in tqdm(range(3)): pass").await;
    assert!(text(&bar).contains("100%") && bar["isError"] == false, "{bar}");
    let table = native("import pandas as pd\npd.DataFrame({'city': ['Oslo', 'Rome'], 'n': [3, 12]})").await;
    assert!(text(&table).starts_with("   city   n\n0  Oslo   3\n1  Rome  12\n"), "{table}");
    let failed = native("1/0").await;
    assert!(text(&failed).contains("ZeroDivisionError") && !text(&failed).contains('\u{1b}'), "{failed}");
    let asked = json!({"conversationId": "n", "code": "input('name? ')", "stdin": "Ada\n"});
    assert!(text(&tool("sandbox_run_cell", asked).await).contains("'Ada'"));
    assert!(text(&native("input()").await).contains("Error"), "without input it fails clearly");

    for (name, member) in [("execute_python_code", "command"), ("execute_ipython_cell", "code")] {
        tool(name, json!({ member: "a = 41" })).await;
        assert_eq!(text(&tool(name, json!({ member: "a + 1" })).await).trim_end(), "42", "{name}");
        tool("reset", json!({})).await;
        assert!(text(&tool(name, json!({ member: "a" })).await).contains("NameError"), "{name}");
    }
    tool("execute_bash_code", json!({"command": "b=41"})).await;
    assert_eq!(text(&tool("execute_bash_code", json!({"command": "echo $((b + 1))"})).await).trim_end(), "42");

    let alone = ask(Method::POST, "/v1/execute", json!({"code": "a = 41\na + 1"})).await;
    assert_eq!(alone["stdout"], "42\n", "{alone}");

    let session = ask(Method::POST, "/v1/sessions", json!({})).await;
    let session = format!("/v1/sessions/{}", session["sessionId"].as_str().expect("an id"));
    ask(Method::POST, &format!("{session}/cells"), json!({"code": "abc = 41"})).await;
    let sum = ask(Method::POST, &format!("{session}/cells"), json!({"code": "abc + 1"})).await;
    assert_eq!(sum["result"]["stdout"], "42\n", "{sum}");
    let completed = ask(Method::POST, &format!("{session}/complete"), json!({"code": "ab"})).await;
    assert!(completed["matches"].to_string().contains("\"abc\""), "{completed}");
    let about = ask(Method::POST, &format!("{session}/inspect"), json!({"code": "abc"})).await;
    assert_eq!(about["found"], true, "{about}");
    let called = "called = []\ndef text(): called.append(1); return ''";
    ask(Method::POST, &format!("{session}/cells"), json!({"code": called})).await;
    ask(Method::POST, &format!("{session}/complete"), json!({"code": "text()."})).await;
    ask(Method::POST, &format!("{session}/inspect"), json!({"code": "text()"})).await;
    let called = ask(Method::POST, &format!("{session}/cells"), json!({"code": "called"})).await;
    assert_eq!(called["result"]["stdout"], "[]\n", "{called}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn real_module_source_is_read_in_a_fresh_sandbox() {
    let server = Server::start().await;
    let http = crate::support::http::client();
    let get =
        async |path: &str| read(http.get(server.url(path)).bearer_auth(TOKEN).send().await.expect("an answer")).await;
    let (status, module) = get("/v1/runners/python/modules/json.decoder").await;
    assert_eq!(status, 200, "{module}");
    assert!(module["source"].as_str().expect("text").contains("class JSONDecoder"), "{module}");
    for missing in ["python/modules/no_such_module", "python/modules/sys", "python/modules/os%27", "bash/modules/os"] {
        let (status, why) = get(&format!("/v1/runners/{missing}")).await;
        assert_eq!((status, &why["code"]), (404, &json!("not_found")), "{missing}: {why}");
    }
    server.stop().await;
}
