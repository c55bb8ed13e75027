//! Tools of MCP servers, called by programs in real sandboxes: servers of the official SDK in both generations, and one
//! that is hostile.

mod approvals;
mod hostile;
mod modules;
mod page;
mod sandboxed;
mod stored;
pub mod upstream;

use std::{path::PathBuf, process::Stdio};

use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::{
    mcp_clients::{client, tool},
    support::{
        calls::{call, create, streams},
        free_port, http,
        server::{Server, TOKEN},
        until,
    },
};

/// A server of tools by an SDK, and what it deleted.
struct Sdk {
    url: String,
    folder: TempDir,
    _child: Child,
}

impl Sdk {
    async fn start(generation: &str) -> Self {
        let port = free_port();
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(tool(&format!("{generation}/bin/python")));
        command.arg(script()).arg(port.to_string()).arg(folder.path().join("deleted"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().expect("it starts");
        let url = format!("http://127.0.0.1:{port}/mcp");
        until("it answers", async || {
            let ended = child.try_wait().expect("a status");
            assert!(ended.is_none(), "it ended at its start: {ended:?}");
            http::client().get(&url).send().await.is_ok()
        })
        .await;
        Self { url, folder, _child: child }
    }

    fn deleted(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.folder.path().join("deleted")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }
}

fn script() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tools/server.py")
}

/// A server without standbys: programs are few.
async fn server(more: &[(&str, &str)]) -> Server {
    Server::with(&[&[("SANDBOX_STANDBY__TOTAL_MAX", "0")], more].concat()).await
}

async fn get(server: &Server, token: &str, path: &str) -> Value {
    call(server, token, Method::GET, path, None).await.1
}

/// Makes a tool server on the sandbox's server.
async fn put(server: &Server, name: &str, definition: Value) {
    let body = json!({"server": definition});
    let (status, answer) = call(server, TOKEN, Method::PUT, &format!("/v1/tool-servers/{name}"), body).await;
    assert_eq!(status, 204, "{answer}");
}

async fn token_of(server: &Server, owner: &str, scopes: &[&str]) -> String {
    create(server, json!({"name": owner, "owner": owner, "scopes": scopes})).await.1
}

/// The whole result of a program.
async fn run(server: &Server, token: &str, conversation: &str, language: &str, code: &str) -> Value {
    let body = json!({"conversationId": conversation, "language": language, "code": code});
    call(server, token, Method::POST, "/v1/runs", body).await.1
}

/// What a program printed to both streams.
async fn printed(server: &Server, token: &str, language: &str, code: &str) -> String {
    let (stdout, stderr) = streams(&run(server, token, "tools", language, code).await["result"]);
    stdout + stderr.as_str()
}

const PYTHON: &str = r#"
import asyncio, mcptools, concurrent.futures
from mcptools.NAME.add import Params, Result, run
result = run(Params(a=1, b=2))
assert isinstance(result, Result) and result.total == 3 and run(a=5).terms == [5, 1]
assert sum(run(a=number, b=0).total for number in range(200)) == 19900
from mcptools.NAME import echo, fail, large, picture, wait
assert echo.run(text="a\n😀") == "a\n😀" and "add(a: int" in mcptools.NAME.__doc__
try: fail.run(why="because")
except mcptools.ToolFailed as error: assert "fail" in str(error) or "because" in str(error)
text = large.run(length=2_000_000)
[path] = mcptools.last_files()
assert path in text and len(text) < 200 and open(path).read() == "x" * 2_000_000
path = picture.run().split(": ")[1].rstrip("]")
assert open(path, "rb").read(4) == b"\x89PNG"
with concurrent.futures.ThreadPoolExecutor(20) as pool:
    assert [one.total for one in pool.map(lambda n: run(a=n), range(100))] == list(range(1, 101))
async def main():
    told = []
    all = await asyncio.gather(*[wait.run_async(seconds=0.5) for _ in range(10)])
    assert all == ["waited"] * 10, all
    await mcptools.call_async("NAME", "wait", {"seconds": 0.2}, told.append)
    assert told and told[-1]["total"] == 10, told
    task = asyncio.create_task(wait.run_async(seconds=60)); await asyncio.sleep(0.2); task.cancel()
    try: await task
    except asyncio.CancelledError: print("cancelled")
asyncio.run(main())
import os
import warnings; warnings.simplefilter("ignore")  # of a fork beside threads
if os.fork() == 0:
    print("child", run(a=41).total, flush=True); os._exit(0)
os.wait()
try: import mcptools.NAME.nothing
except ModuleNotFoundError as error: print(error)
try: run(a=1, other=2)
except ValueError as error: print(type(error).__name__)
try: mcptools.call("NAME", "add", {"a": "one"})
except mcptools.ToolError as error: print(error.code)
"#;
const PRINTED: &str =
    "cancelled\nchild 42\n`NAME` has no tool `nothing`; search for one.\nValidationError\ninvalid_arguments\n";

#[tokio::test(flavor = "multi_thread")]
async fn programs_call_tools_of_both_generations_of_servers() {
    let (old, new) = (Sdk::start("mcp1").await, Sdk::start("mcp2").await);
    let server = server(&[]).await;
    put(&server, "old", json!({"url": old.url})).await;
    put(&server, "modern", json!({"url": new.url})).await;
    for name in ["old", "modern"] {
        let text = printed(&server, TOKEN, "python", &PYTHON.replace("NAME", name)).await;
        assert_eq!(text, PRINTED.replace("NAME", name));
    }
    let session = r"
from mcptools.modern import add, wait
r = await wait.run_async(seconds=0.1)
print(r, add.run(a=1).total)
";
    let body = json!({"conversationId": "cells", "code": session});
    let cell = server.call("sandbox.run_cell", body).await;
    assert!(cell["content"][0]["text"].as_str().expect("text").starts_with("waited 2"), "{cell}");
    let javascript = "import { run } from 'mcptools/modern/add';\nimport { call } from 'mcptools';\n\
        console.log((await run({a: 1, b: 2})).total);\n\
        console.log((await Promise.all([...Array(50).keys()].map((a) => run({a})))).length);\n\
        const ended = AbortSignal.timeout(200);\n\
        await call('modern', 'wait', {seconds: 60}, {signal: ended}).catch((error) => console.log(error.name));\n\
        await run({a: 'one'}).catch((error) => console.log(error.code));";
    let text = printed(&server, TOKEN, "javascript", javascript).await;
    assert_eq!(text, "3\n50\nTimeoutError\ninvalid_arguments\n");
    let commonjs = "const { add, echo } = require('mcptools/old');\n\
        add({a: 1}).then(async (r) => console.log(r.total, await echo({text: 'said'})));";
    assert_eq!(printed(&server, TOKEN, "javascript", commonjs).await, "2 said\n");
    let typescript = "import { run } from 'mcptools/old/add';\n\
        const sum: { total: number } = await run({ a: 40, b: 2 });\n\
        enum Ok { Yes = 'yes' }\nconsole.log(sum.total, Ok.Yes);";
    assert_eq!(printed(&server, TOKEN, "typescript", typescript).await, "42 yes\n");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_of_the_settings_is_a_server_and_its_secret_is_seen_by_it_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("sandbox.toml");
    let (python, script) = (tool("mcp2/bin/python"), script());
    let settings = format!(
        "[tools.local]\ncommand = ['{}', '{}', '0', '{}']\nenv = {{ KEY = 'x-{{secret}}' }}\n",
        python.display(),
        script.display(),
        folder.path().join("deleted").display()
    );
    std::fs::write(&file, settings).expect("written");
    let secret = ("SANDBOX_TOOLS__LOCAL", "0123456789-of-the-command");
    let server = server(&[("--config", file.to_str().expect("a path")), secret]).await;
    let text = printed(&server, TOKEN, "python", "from mcptools.local.add import run\nprint(run(a=1).total)").await;
    assert_eq!(text, "2\n");
    let processes = || {
        let all = std::fs::read_dir("/proc").expect("processes").flatten();
        all.filter(|one| {
            let command = std::fs::read(one.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&command).contains(&folder.path().display().to_string())
        })
        .map(|one| std::fs::read(one.path().join("environ")).unwrap_or_default())
        .collect::<Vec<_>>()
    };
    let [environment] = processes().try_into().expect("one process");
    let environment = String::from_utf8(environment).expect("text");
    let names: Vec<_> = environment.split('\0').filter_map(|pair| pair.split_once('=')).map(|(name, _)| name).collect();
    assert_eq!(names, ["KEY", "PATH"], "{environment}");
    assert!(environment.contains("KEY=x-0123456789-of-the-command"));
    let (status, list) = call(&server, TOKEN, Method::GET, "/v1/tool-servers", None).await;
    assert!(status == 200 && !list.to_string().contains("of-the-command"), "{list}");
    assert_eq!(list["servers"][0]["isConfigured"], true);
    let (status, refused) =
        call(&server, TOKEN, Method::PUT, "/v1/tool-servers/other", json!({"server": {"command": ["true"]}})).await;
    assert!(status == 422 && refused.to_string().contains("settings"), "{refused}");
    server.stop().await;
    until("the command ends with the server", async || processes().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ipyboxs_flow_works_with_an_unmodified_client() {
    let sdk = Sdk::start("mcp2").await;
    let server = server(&[]).await;
    client(&tool("mcp1/bin/python"), &["ipybox_client.py", &server.url("/mcp"), TOKEN, &sdk.url]).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn models_find_tools_and_register_servers_as_with_ipybox() {
    let sdk = Sdk::start("mcp2").await;
    let server = server(&[]).await;
    let none = server.call("sandbox.search_tools", json!({"query": "add"})).await;
    assert!(none["content"][0]["text"].as_str().expect("text").contains("Servers: none"), "{none}");
    let params = json!({"server_name": "mine", "server_params": {"url": sdk.url}});
    let registered = server.call("register_mcp_server", params).await;
    let names: Vec<_> = registered["content"].as_array().expect("blocks").iter().map(|block| &block["text"]).collect();
    assert_eq!(names, ["add", "echo", "delete_file", "wait", "fail", "large", "picture"]);
    let cell = json!({"code": "from mcptools.mine.add import Params, run\nprint(run(Params(a=1, b=1)).total)"});
    let cell = server.call("execute_ipython_cell", cell).await;
    assert_eq!(cell["content"][0]["text"], "2\n", "{cell}");
    let found = server.call("sandbox.search_tools", json!({"query": "add numbers", "limit": 1})).await;
    let found = found["content"][0]["text"].as_str().expect("text").to_owned();
    assert!(found.starts_with("mine/add: Adds two numbers.\n") && found.contains("add(a: int"), "{found}");
    let source = server.call("sandbox.get_tool_source", json!({"server": "mine", "tool": "add"})).await;
    assert!(source["content"][0]["text"].as_str().expect("text").contains("class Params"), "{source}");
    sandboxed::store(&server, TOKEN, "tools-local", "server.py", sandboxed::program()).await;
    let params = json!({"server_name": "local", "server_params": {"command": "python3", "args": ["/data/server.py"],
        "env": {"KEY": "of ipybox"}}});
    let registered = server.call("register_mcp_server", params).await;
    assert_eq!(registered["content"][3]["text"], "key", "a command has a sandbox of its own: {registered}");
    let cell = json!({"code": "from mcptools.local import key\nprint(key.run())"});
    let cell = server.call("execute_ipython_cell", cell).await;
    assert_eq!(cell["content"][0]["text"], "of ipybox\n", "{cell}");
    let ann = token_of(&server, "ann", &["run", "files"]).await;
    assert_eq!(get(&server, &ann, "/v1/tools").await, json!({"servers": []}), "it is the caller's alone");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_at_the_client_is_asked() {
    let sdk = Sdk::start("mcp1").await;
    let server = server(&[]).await;
    put(&server, "files", json!({"url": sdk.url})).await;
    client(&tool("mcp1/bin/python"), &["approving_mcp1.py", &server.url("/mcp"), TOKEN]).await;
    assert_eq!(sdk.deleted(), ["/a", "/b", "/b", "/b"]);
    // Answers that stand are of the same tool; this is another.
    put(&server, "files", json!({"url": sdk.url, "rules": [{"tool": "delete_file", "action": "ask"}]})).await;
    let modern = [server.url("/mcp"), TOKEN.to_owned(), "approvals".to_owned()];
    let answers = get(&server, TOKEN, "/v1/approvals").await;
    for one in answers["approvals"].as_array().expect("answers").iter().filter(|one| one["answer"] == "always") {
        let path = format!("/v1/approvals/{}", one["id"].as_str().expect("an id"));
        assert_eq!(call(&server, TOKEN, Method::DELETE, &path, None).await.0, 204);
    }
    let python = tool("mcp2/bin/python");
    client(&python, &["asking_mcp2.py", &modern[0], &modern[1], &modern[2]]).await;
    assert_eq!(sdk.deleted()[4..6], ["/a", "/b"]);
    assert_eq!(sdk.deleted().len(), 10);
    server.stop().await;
}
