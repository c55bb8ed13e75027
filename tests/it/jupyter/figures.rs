//! What a notebook's cells use.

use mcp_sandbox_server::ports::engine::Engine as _;
use reqwest::Method;
use serde_json::{Value, json};

use super::{FakeServer, Socket, TOKEN};
use crate::support::{
    calls::{call, create},
    until,
};

/// A new token with these limits, a kernel that it has started, and a client of that.
async fn notebook(server: &FakeServer, limits: Value) -> (String, String, Socket) {
    let (_, token) = create(server, json!({"name": "n", "owner": "ann", "limits": limits})).await;
    let wanted = json!({"name": "fake"});
    let (_, kernel) = call(server, &token, Method::POST, "/jupyter/api/kernels", wanted).await;
    let id = kernel["id"].as_str().expect("an id").to_owned();
    let path = format!("/jupyter/t/{token}/api/kernels/{id}/channels");
    let client = Socket::connect(server.address, &path, &[]).await.expect("a connection");
    (token, id, client)
}

/// Why a notebook's next cell is not executed.
async fn refusal(client: &mut Socket) -> String {
    let refused = client.execute("print no").await;
    let answers = client.answers(&refused).await;
    let error = answers.iter().find(|message| message["msg_type"] == "error").expect("an error");
    assert_eq!(error["content"]["ename"], "rate_limited");
    error["content"]["evalue"].to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_notebooks_cell_used_is_its_own_and_counts_for_its_token() {
    let server = FakeServer::with_kernel(&[]).await;
    let (token, id, mut client) = notebook(&server, json!({"cpuSecondsPerDay": 5})).await;
    // Two at once, in one turn of the conversation.
    client.execute("print first").await;
    client.run("burn 4s").await;
    let cells = format!("/v1/sessions/session-{}/cells", id.replace('-', ""));
    let (_, cell) = call(&server, &token, Method::POST, &cells, json!({"code": "print rest"})).await;
    assert_eq!(cell["result"]["figures"]["cpuMs"], 10, "neither loading nor the notebook: {cell}");
    client.run("burn 1s").await;
    let why = refusal(&mut client).await;
    assert!(why.contains("5 s of processor time a day"), "{why}");

    let (_, _, mut client) = notebook(&server, json!({"outputBytesPerDay": 10})).await;
    assert_eq!(client.run("print 12345\nstderr 789").await, "12345\n789\n");
    let why = refusal(&mut client).await;
    assert!(why.contains("10 bytes of output a day"), "{why}");

    // A result and a traceback are printed too.
    for code in ["set x 1234567890\nget x", "raise Name 1234567890"] {
        let (_, _, mut client) = notebook(&server, json!({"outputBytesPerDay": 10})).await;
        client.run(code).await;
        let why = refusal(&mut client).await;
        assert!(why.contains("10 bytes of output a day"), "{code}: {why}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_notebooks_cell_used_that_ends_its_kernel_counts_for_its_token() {
    let server = FakeServer::with_kernel(&[]).await;
    let (token, _, mut client) = notebook(&server, json!({"cpuSecondsPerDay": 5})).await;
    client.run("burn 6s\nexit 3").await;
    let program = json!({"language": "python", "code": "print no"});
    let (status, why) = call(&server, &token, Method::POST, "/v1/runs", program).await;
    assert_eq!((status, &why["code"]), (429, &json!("rate_limited")), "{why}");
    server.stop().await;
}

/// What the first one used is not known yet when its kernel ends.
#[tokio::test(flavor = "multi_thread")]
async fn notebooks_cells_that_lose_their_kernel_count_once() {
    let server = FakeServer::with_kernel(&[]).await;
    let (token, _, mut client) = notebook(&server, json!({"cpuSecondsPerDay": 5})).await;
    client.execute("noidle\nburn 4600ms").await;
    client.run("exit 3").await;
    let program = json!({"language": "python", "code": "print on", "wait": 30});
    let (_, run) = call(&server, &token, Method::POST, "/v1/runs", program).await;
    assert_eq!(run["result"]["stdout"], "on\n", "{run}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_beyond_the_quota_are_told_after_a_notebooks_cell() {
    let server = FakeServer::with_kernel(&[("SANDBOX_QUOTA__ENTRIES_MAX", "10")]).await;
    let (_, _, mut client) = notebook(&server, json!({})).await;
    let says = |message: &Value| {
        message["content"]["text"].as_str().is_some_and(|text| text.contains("more than 10 files and folders"))
    };
    let writing =
        |names: std::ops::Range<u8>| names.map(|name| format!("write {name} x")).collect::<Vec<_>>().join("\n");
    let within = client.execute(&writing(0..8)).await;
    assert!(!client.answers(&within).await.iter().any(says));
    // Too fast for the looks that are taken while code runs.
    let beyond = client.execute(&writing(8..12)).await;
    let told = client.until(says).await;
    assert_eq!(told.last().expect("a message")["parent_header"]["msg_id"], beyond);
    let refused = client.execute("print no").await;
    let is_reply =
        |message: &Value| message["msg_type"] == "execute_reply" && message["parent_header"]["msg_id"] == refused;
    let answers = client.until(is_reply).await;
    assert_eq!(answers.last().expect("a reply")["content"]["ename"], "quota_exceeded");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notebooks_cell_that_ignores_the_interrupt_at_a_disk_limit_ends_its_session() {
    let server = FakeServer::with_kernel(&[("SANDBOX_QUOTA__ENTRIES_MAX", "10")]).await;
    let (_, _, mut client) = notebook(&server, json!({})).await;
    let writing: Vec<_> = (0..12).map(|name| format!("write {name} x")).collect();
    let cell = client.execute(&format!("stubborn\n{}\nhang", writing.join("\n"))).await;
    let answers = client.answers(&cell).await;
    let says = |message: &Value, what: &str| message["content"].to_string().contains(what);
    let told = answers.iter().position(|message| says(message, "more than 10 files and folders"));
    let ended = answers.iter().position(|message| says(message, "did not react to its interrupt"));
    assert!(told.is_some() && told < ended, "{answers:?}");
    let (_, why) = client.closed().await;
    assert_eq!(why, "the kernel is gone: a cell did not react to its interrupt");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notebooks_cell_is_in_the_history_with_how_it_ended() {
    let server = FakeServer::with_kernel(&[("SANDBOX_QUOTA__ENTRIES_MAX", "10")]).await;
    let many: Vec<_> = (0..12).map(|name| format!("write {name} x")).collect();
    let cells = [
        ("oom".to_owned(), "out_of_memory", None),
        ("exit 3".to_owned(), "exited", Some(3)),
        ("signal 11".to_owned(), "signaled", None),
        ("garbage\nhang".to_owned(), "failed", None),
        ("fail".to_owned(), "failed", None),
        (format!("{}\nhang", many.join("\n")), "disk_limit", None),
        ("print on".to_owned(), "exited", Some(0)),
        ("raise Name no".to_owned(), "exited", Some(1)),
        ("complain Name no".to_owned(), "exited", Some(0)),
        // As the kernel of a shell says a status.
        ("raise  4".to_owned(), "exited", Some(4)),
    ];
    for (code, ..) in &cells {
        let (_, _, mut client) = notebook(&server, json!({})).await;
        client.run(code).await;
    }
    let mut expected: Vec<_> = cells.iter().map(|(_, ended, code)| (Some((*ended).to_owned()), *code)).collect();
    expected.sort_unstable();
    until("each cell is in the history as it ended", async || {
        let history = call(&server, TOKEN, Method::GET, "/v1/history?owner=ann", None::<Value>).await.1;
        let end = |run: &Value| (run["ended"].as_str().map(str::to_owned), run["exitCode"].as_u64());
        let mut ended: Vec<_> = history["runs"].as_array().into_iter().flatten().map(end).collect();
        ended.sort_unstable();
        ended == expected
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notebooks_cell_is_in_the_history_from_when_its_kernel_executes_it() {
    let server = FakeServer::with_kernel(&[]).await;
    let (_, _, mut client) = notebook(&server, json!({})).await;
    // Both are passed on in one turn.
    client.execute("ask go?\nsleep 1s\nprint first").await;
    let second = client.execute("print second").await;
    client.until(|message| message["msg_type"] == "input_request").await;
    let runs = async || {
        let history = call(&server, TOKEN, Method::GET, "/v1/history?owner=ann", None::<Value>).await.1;
        history["runs"].as_array().cloned().unwrap_or_default()
    };
    until("one has begun", async || !runs().await.is_empty()).await;
    let begun = runs().await;
    assert!(begun.len() == 1 && begun[0]["ended"].is_null(), "{begun:?}");
    client.send("stdin", "input_reply", json!({"value": "yes"})).await;
    client.answers(&second).await;
    let have_ended = async || runs().await.iter().filter(|run| run["ended"] == "exited").count() == 2;
    until("both have ended", have_ended).await;
    // Newest first.
    let ended = runs().await;
    assert_eq!(ended[1]["runId"], begun[0]["runId"]);
    let wall = |run: &Value| run["figures"]["wallMs"].as_u64().expect("a time");
    assert!(wall(&ended[0]) < wall(&ended[1]), "the second did not run while the first did: {ended:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notebooks_cell_is_told_the_memory_that_its_runner_asked_for() {
    let server = FakeServer::with_kernel(&[]).await;
    let mut images = server.engine.runners().await.expect("images");
    for image in &mut images {
        image.labels.insert("sandbox.memory-bytes".to_owned(), (512 << 20).to_string());
    }
    server.engine.set_runners(images);
    let python = "python".parse().expect("a language");
    until("the label is read", async || {
        server.shared.catalog.find(&python).is_some_and(|runner| runner.memory_bytes == Some(512 << 20))
    })
    .await;
    let (_, _, mut client) = notebook(&server, json!({})).await;
    client.run("oom").await;
    until("its limit is in the history", async || {
        let history = call(&server, TOKEN, Method::GET, "/v1/history?owner=ann", None::<Value>).await.1;
        history["runs"][0]["sentence"].as_str().is_some_and(|sentence| sentence.contains("512 MiB"))
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notebooks_cell_records_what_was_killed_for_memory_in_it_alone() {
    let server = FakeServer::with_kernel(&[]).await;
    let (token, id, mut client) = notebook(&server, json!({})).await;
    let cells = format!("/v1/sessions/session-{}/cells", id.replace('-', ""));
    call(&server, &token, Method::POST, &cells, json!({"code": "oom-child"})).await;
    client.run("print before").await;
    client.run("oom-child\nprint lost").await;
    client.run("print after").await;
    let history = async || call(&server, TOKEN, Method::GET, "/v1/history?owner=ann", None::<Value>).await.1;
    until("each cell is in the history", async || {
        history().await["runs"]
            .as_array()
            .is_some_and(|runs| runs.iter().filter(|run| run["ended"].is_string()).count() == 4)
    })
    .await;
    let history = history().await;
    let killed = |run: &Value| {
        let is_told = run["sentence"].as_str().is_some_and(|sentence| sentence.contains("killed"));
        (run["figures"]["stdoutBytes"].as_u64(), is_told)
    };
    let mut killed: Vec<_> = history["runs"].as_array().expect("a list").iter().map(killed).collect();
    killed.sort_unstable();
    let (before, lost, after) = ((Some(7), false), (Some(5), true), (Some(6), false));
    assert_eq!(killed, [(Some(0), true), lost, after, before]);
    server.stop().await;
}
