//! Clients that other people wrote, against a whole server with real programs: the Python SDK in two generations, the
//! MCP Inspector, and a process that speaks over standard input and output.

use std::{
    fs::Permissions,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::Command,
    time::timeout,
};

use crate::support::{Server, server::TOKEN, until};

const CLIENT_TIME_MAX: Duration = Duration::from_mins(3);
/// More than the long form of a test runs, which `LONG=1` asks for: see `tests/clients/watching.py`.
const RUN_MAX: (&str, &str) = ("SANDBOX_LIMITS__WALL_MS", "120000");

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A tool that is prepared once and never skipped.
pub fn tool(name: &str) -> PathBuf {
    let path = root().join("target/test-tools").join(name);
    assert!(path.exists(), "{} is missing: run ./test.sh, which prepares the clients", path.display());
    path
}

/// Runs a client to its end; its own words are the failure's.
pub async fn client(program: &Path, arguments: &[&str]) {
    client_with(program, arguments, &[]).await;
}

/// The same with these variables.
pub async fn client_with(program: &Path, arguments: &[&str], variables: &[(&str, &str)]) {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(root().join("tests/clients"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .envs(variables.iter().copied())
        .kill_on_drop(true);
    let output = timeout(CLIENT_TIME_MAX, command.stdin(Stdio::null()).output());
    let output = output.await.expect("the client ends in time").expect("the client starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {}\n{out}\n{err}", output.status);
    print!("{out}");
}

#[tokio::test(flavor = "multi_thread")]
async fn python_sdk_1_calls_the_tools() {
    let python = tool("mcp1/bin/python");
    let server = Server::start().await;
    client(&python, &["python_mcp1.py", &server.url("/mcp"), TOKEN]).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_sdk_2_calls_the_tools() {
    let python = tool("mcp2/bin/python");
    let server = Server::start().await;
    client(&python, &["python_mcp2.py", &server.url("/mcp"), TOKEN]).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_sdks_watch_detach_and_cancel_runs() {
    let (before_2, from_2_on) = (tool("mcp1/bin/python"), tool("mcp2/bin/python"));
    let server = Server::with(&[RUN_MAX, ("SANDBOX_STANDBY__TOTAL_MAX", "0"), ("SANDBOX_ADMISSION__SLOTS", "9")]).await;
    let url = server.url("/mcp?structured=on");
    let first = ["watching_mcp1.py", url.as_str(), TOKEN];
    let second = ["watching_mcp2.py", url.as_str(), TOKEN];
    tokio::join!(client(&before_2, &first), client(&from_2_on, &second));
    // A sandbox that was given up while it started is leased until it has started.
    until("no sandbox is leased", async || server.janitor.leased() == 0).await;
    server.janitor.idle().await;
    assert_eq!(server.containers().await, 0, "what was given up is gone");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_sdk_answers_what_a_cell_asks() {
    let python = tool("mcp1/bin/python");
    let server = Server::start().await;
    client(&python, &["asking_mcp1.py", &server.url("/mcp"), TOKEN]).await;
    client(&tool("mcp2/bin/python"), &["asking_mcp2.py", &server.url("/mcp"), TOKEN, "input"]).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inspector_calls_the_tools() {
    let bin = tool("npm/node_modules/.bin");
    let server = Server::start().await;
    let bin = bin.to_str().expect("a path in UTF-8");
    client(Path::new("sh"), &["inspector.sh", &server.url("/mcp"), TOKEN, bin]).await;
    server.stop().await;
}

/// A server for one client, which is this process; its files are in the folder.
fn over_stdio(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mcp-sandbox-server"));
    command.arg("stdio").env_clear().envs(std::env::var("DOCKER_HOST").map(|host| ("DOCKER_HOST", host)));
    command.env("SANDBOX_ROOT", folder.join("root")).current_dir(folder);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    command
}

/// The revision that has batches, and a later one.
#[tokio::test(flavor = "multi_thread")]
async fn stdio_transport_takes_batches_of_2025_03_26_only() {
    for (version, takes) in [("2025-03-26", true), ("2025-06-18", false)] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut process = over_stdio(folder.path()).spawn().expect("the server starts");
        let mut input = process.stdin.take().expect("its input");
        let mut lines = BufReader::new(process.stdout.take().expect("its output")).lines();
        let mut answer = async || -> Value {
            let line = timeout(CLIENT_TIME_MAX, lines.next_line()).await.expect("an answer in time").expect("text");
            serde_json::from_str(&line.expect("an answer")).expect("JSON")
        };
        let mut send = async |message: Value| {
            input.write_all(format!("{message}\n").as_bytes()).await.expect("sent");
        };
        let client = json!({"name": "test", "version": "1"});
        let params = json!({"protocolVersion": version, "capabilities": {}, "clientInfo": client});
        send(json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})).await;
        assert_eq!(answer().await["result"]["protocolVersion"], version);
        send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        let ping = |id: u64| json!({"jsonrpc": "2.0", "id": id, "method": "ping"});
        let wrong = json!({"jsonrpc": "2.0", "id": 2, "method": 7});
        let nothing = json!({"jsonrpc": "2.0", "method": "notifications/nothing"});
        send(json!([ping(1), wrong, nothing, ping(3)])).await;
        // A line that is no message has one answer, which names no request.
        let (mut found, answers) = (Vec::new(), if takes { 3 } else { 1 });
        for _ in 0..answers {
            let answer = answer().await;
            found.push((answer["id"].as_u64(), answer["error"]["code"].as_i64()));
        }
        found.sort_unstable();
        let refused = Some(-32600);
        let expected =
            if takes { vec![(Some(1), None), (Some(2), refused), (Some(3), None)] } else { vec![(None, refused)] };
        assert_eq!(found, expected, "{version}");
        let long = json!({"jsonrpc": "2.0", "id": "x".repeat(129), "method": "ping"});
        for unbounded in [Value::from(vec![ping(5); 33]), long] {
            send(unbounded).await;
            let answer = answer().await;
            assert_eq!(
                (&answer["id"], &answer["error"]["code"]),
                (&Value::Null, &json!(-32600)),
                "{version}: {answer}"
            );
        }
        // What follows is read as before.
        send(ping(4)).await;
        assert_eq!(answer().await["id"], 4, "{version}");
        drop(input);
        let status = timeout(CLIENT_TIME_MAX, process.wait()).await.expect("it ends").expect("a status");
        assert!(status.success(), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stdio_transport_serves_a_client() {
    let folder = tempfile::tempdir().expect("a folder");
    // The folder itself is only for its owner; what is shared is for programs too.
    let shared = tempfile::Builder::new().prefix("My docs.").tempdir().expect("a folder");
    std::fs::set_permissions(shared.path(), Permissions::from_mode(0o755)).expect("open to all");
    std::fs::write(shared.path().join("note.txt"), "from this machine\n").expect("a file");
    let shared_name = shared.path().file_name().expect("a name").to_str().expect("text").to_lowercase();
    let shared_name = shared_name.replace([' ', '.'], "-");
    let mut process = over_stdio(folder.path()).arg("--mount").arg(shared.path()).spawn().expect("the server starts");
    let mut input = process.stdin.take().expect("its input");
    let mut lines = BufReader::new(process.stdout.take().expect("its output")).lines();
    let mut ask_line = async |line: &str, answered: bool| -> Value {
        input.write_all(format!("{line}\n").as_bytes()).await.expect("sent");
        if !answered {
            return Value::Null;
        }
        let line = timeout(CLIENT_TIME_MAX, lines.next_line()).await.expect("an answer in time").expect("text");
        serde_json::from_str(&line.expect("an answer")).expect("nothing but JSON on standard output")
    };
    let mut ask = async |message: Value| ask_line(&message.to_string(), message.get("id").is_some()).await;
    let opened =
        ask(json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-06-18",
        "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}}));
    assert_eq!(opened.await["result"]["serverInfo"]["name"], "mcp-sandbox-server");
    ask(json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
    let run = ask(json!({"jsonrpc": "2.0", "id": "1", "method": "tools/call", "params": {"name": "sandbox_run_code",
        "arguments": {"conversationId": "stdio", "language": "bash", "code": "echo Hello! | tee 'a b.txt'"}}}));
    let run = run.await;
    let text = run["result"]["content"][0]["text"].as_str().expect("text");
    assert!(run["id"] == "1" && text.starts_with("Hello!\n"), "{run}");
    let link = text.lines().find_map(|line| line.split_once("file://")).expect("a link to the file").1;
    assert_eq!(std::fs::read_to_string(link.replace("%20", " ")).expect("the file"), "Hello!\n");
    let code = "read first; read second; echo \"$first,$second,$#,$1,$2\"";
    let run = ask(json!({"jsonrpc": "2.0", "id": 6, "method": "tools/call", "params": {"name": "sandbox_run_code",
        "arguments": {"conversationId": "stdio", "language": "bash", "code": code, "stdin": "one\ntwo words\n",
        "args": ["a b", "$c"]}}}));
    let run = run.await;
    let text = run["result"]["content"][0]["text"].as_str().expect("text");
    assert!(text.starts_with("one,two words,2,a b,$c\n"), "input and arguments of the call: {run}");
    let tools = ask(json!({"jsonrpc": "2.0", "id": 3, "method": "tools/list"})).await;
    assert!(tools.to_string().contains(&format!("/mnt/{shared_name} (read-only)")), "{tools}");
    let listed: Vec<_> = tools["result"]["tools"].as_array().expect("tools").iter().map(|tool| &tool["name"]).collect();
    assert!(!listed.contains(&&json!("sandbox_upload_url")) && listed.contains(&&json!("sandbox_write_file")));
    let upload =
        ask(json!({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "sandbox_upload_url",
        "arguments": {"conversationId": "stdio", "path": "big"}}}));
    let upload = upload.await["result"].to_string();
    assert!(upload.contains("no server takes an upload") && upload.contains("--mount"), "{upload}");
    assert!(!upload.contains("PUT") && !upload.contains("file://"), "{upload}");
    let code = format!("cat /mnt/{shared_name}/note.txt; touch /mnt/{shared_name}/new");
    let run = ask(json!({"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": {"name": "sandbox_run_code",
        "arguments": {"conversationId": "stdio", "language": "bash", "code": code}}}));
    let run = run.await.to_string();
    assert!(run.contains("from this machine") && run.contains("Read-only file system"), "{run}");
    let read = json!({"uri": format!("file://{link}")});
    let read = ask(json!({"jsonrpc": "2.0", "id": 2, "method": "resources/read", "params": read})).await;
    assert_eq!(read["result"]["contents"][0]["text"], "Hello!\n", "{read}");
    let long = "x".repeat(17 << 20);
    for (line, code) in
        [("nonsense", -32700), (&*long, -32600), ("{\"a\":", -32700), ("[]", -32600), ("{\"id\":7}", -32600)]
    {
        let answer = ask_line(line, true).await;
        assert_eq!(answer["error"]["code"], code, "{line:.80}: {answer}");
    }
    drop(input);
    let status = timeout(CLIENT_TIME_MAX, process.wait()).await.expect("it ends with its input").expect("a status");
    assert!(status.success(), "{status}");
}
