//! Tool servers in sandboxes of their own.

use std::{collections::HashSet, fs, path::PathBuf};

use mcp_sandbox_server::{domain::Principal, ports::engine::ImageId};

use super::*;
use crate::{
    network::origin::Origin,
    support::{
        FakeServer,
        calls::{ask, request},
    },
};

pub(super) fn program() -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tools/boxed.py");
    fs::read_to_string(path).expect("a program")
}

/// Stores a file in a conversation.
pub(super) async fn store(server: &Server, token: &str, conversation: &str, name: &str, text: String) {
    let url = server.url(&format!("/v1/conversations/{conversation}/files/{name}"));
    let stored = server.http.put(url).bearer_auth(token).body(text).send().await.expect("an answer");
    assert!(stored.status().is_success(), "{}", stored.text().await.unwrap_or_default());
}

async fn file(server: &Server, token: &str, path: &str) -> String {
    let request = server.http.get(server.url(path)).bearer_auth(token);
    request.send().await.expect("an answer").text().await.expect("a text")
}

const COMMAND: [&str; 2] = ["python3", "/data/server.py"];

fn called(tool: &str, arguments: &str) -> String {
    format!(
        "import mcptools\ntry: print(mcptools.call('box', '{tool}', {arguments}).text)\n\
         except mcptools.ToolError as error: print(error.code, error)\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_in_a_sandbox_has_its_files_its_secret_and_its_network_alone() {
    let origin = Origin::start().await;
    let server = server(&[("SANDBOX_NETWORK__LOCAL", &origin.http.to_string())]).await;
    store(&server, TOKEN, "tools-box", "server.py", program()).await;
    let definition = json!({"image": "python", "command": COMMAND, "env": {"KEY": "{secret}"}, "network": ["local"]});
    let body = json!({"server": definition, "secret": "k-0123456789"});
    assert_eq!(ask(&server, Method::PUT, "/v1/tool-servers/box", body).await.0, 204);
    let call = async |tool: &str, arguments: &str| printed(&server, TOKEN, "python", &called(tool, arguments)).await;
    let uid = call("note", "{'text': 'one,'}").await;
    assert!(uid.starts_with("1 of ") && !uid.ends_with("of 0\n"), "{uid}");
    assert!(call("note", "{'text': 'two'}").await.starts_with("2 of "), "it is the same process");
    assert_eq!(file(&server, TOKEN, "/v1/conversations/tools-box/files/notes").await, "one,two");
    assert_eq!(call("key", "{}").await, "k-0123456789\n");
    let own = "import os\nprint(os.environ.get('KEY'), os.path.exists('/data/notes'))";
    assert_eq!(printed(&server, TOKEN, "python", own).await, "None False\n");
    assert_eq!(call("fetch", &format!("{{'url': 'http://{}/hello'}}", origin.http)).await, "hello\n");
    let refused = call("fetch", &format!("{{'url': 'http://{}/hello'}}", origin.other)).await;
    assert!(refused.contains("no policy allows"), "{refused}");
    let large = called("large", "{'length': 3_000_000}").replace(".text)", ".files[0])");
    assert!(printed(&server, TOKEN, "python", &large).await.contains("tool-results"), "more than a pipe holds");
    // What it writes when it ends is not told to programs.
    let ended = call("refuse", "{}").await;
    assert!(ended.starts_with("tool_unavailable") && !ended.contains("k-01"), "{ended}");
    assert!(call("note", "{'text': '3'}").await.starts_with("1 of "), "it is started again");

    let running = server.containers().await;
    assert_eq!(ask(&server, Method::DELETE, "/v1/tool-servers/box", None).await.0, 204);
    until("its sandbox ends", async || server.containers().await < running).await;

    let quiet = json!({"image": "python", "command": COMMAND});
    put(&server, "box", quiet).await;
    let refused = call("fetch", &format!("{{'url': 'http://{}/hello'}}", origin.http)).await;
    assert!(refused.starts_with("failed:"), "it has no network: {refused}");
    assert_eq!(call("key", "{}").await, "none\n", "a secret does not follow");
    server.stop().await;
    assert_eq!(origin.seen(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_in_a_sandbox_is_its_owners() {
    let server = server(&[]).await;
    let (ann, ben) = (token_of(&server, "ann", &["run", "files"]).await, token_of(&server, "ben", &["run"]).await);
    store(&server, &ann, "tools-box", "server.py", program()).await;
    put(&server, "box", json!({"image": "python", "command": COMMAND, "owners": ["ann"]})).await;
    let code = called("note", "{'text': 'a'}");
    assert!(printed(&server, &ann, "python", &code).await.starts_with("1 of "));
    assert_eq!(file(&server, &ann, "/v1/conversations/tools-box/files/notes").await, "a");
    assert!(printed(&server, &ben, "python", &code).await.starts_with("tool_unavailable No tools are offered"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_in_a_sandbox_that_cannot_be_is_told() {
    let quota = ("SANDBOX_QUOTA__BYTES_MAX", "8388608");
    let server = server(&[quota, ("SANDBOX_TOOL_CALLS__SANDBOXES_MAX", "1")]).await;
    store(&server, TOKEN, "tools-box", "server.py", program()).await;
    let call = async |tool: &str, arguments: &str| printed(&server, TOKEN, "python", &called(tool, arguments)).await;
    for (definition, expected) in [
        (json!({"image": "cobol", "command": COMMAND}), "there is no runner for `cobol`"),
        (json!({"image": "python", "command": COMMAND, "network": ["none"]}), "there is no policy `none`"),
        (json!({"image": "python", "command": ["no-such-command"]}), "before the handshake"),
        (json!({"image": "bash", "command": ["true"]}), "before the handshake"),
    ] {
        put(&server, "box", definition.clone()).await;
        let told = call("key", "{}").await;
        assert!(told.starts_with("tool_unavailable") && told.contains(expected), "{definition}: {told}");
    }
    let put_of = async |definition: Value| {
        let body = json!({"server": definition});
        ask(&server, Method::PUT, "/v1/tool-servers/box", body).await
    };
    for wrong in [
        json!({"image": "python"}),
        json!({"image": "../x", "command": COMMAND}),
        json!({"command": COMMAND}),
        json!({"url": "https://a.example", "network": ["a"]}),
    ] {
        assert_eq!(put_of(wrong.clone()).await.0, 422, "{wrong}");
    }
    // Started by a program of another language.
    for image in ["javascript", "bash"] {
        let command = if image == "bash" { json!(COMMAND) } else { json!(["node", "/data/server.cjs"]) };
        store(&server, TOKEN, "tools-box", "server.cjs", NODE.to_owned()).await;
        put(&server, "box", json!({"image": image, "command": command})).await;
        let told = call("key", "{}").await;
        assert_eq!(told, "none\n", "{image}");
    }
    put(&server, "box", json!({"image": "python", "command": COMMAND})).await;
    put(&server, "other", json!({"image": "python", "command": COMMAND})).await;
    assert_eq!(call("key", "{}").await, "none\n");
    let more = called("key", "{}").replace("'box'", "'other'");
    let told = printed(&server, TOKEN, "python", &more).await;
    assert!(told.contains("1 tool servers run in sandboxes"), "{told}");
    call("fill", "{'mib': 64}").await;
    until("it is ended at its quota", async || call("key", "{}").await.contains("take too much space")).await;
    server.stop().await;
}

/// Process 1 has the limit of every sandbox when it writes the files that travel.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_too_long_for_the_sandbox_of_a_server_is_named() {
    let settings = [("SANDBOX_ENGINE__FILES", "streamed"), ("SANDBOX_LIMITS__FILE_BYTES_MAX", "1024")];
    let server = FakeServer::with_kernel(&settings).await;
    let path = "/v1/conversations/tools-box/files/long";
    let stored = request(&server, TOKEN, Method::PUT, path).body("x".repeat(1025)).send().await.expect("an answer");
    assert!(stored.status().is_success(), "{stored:?}");
    let body = json!({"server": {"image": "python", "command": COMMAND}});
    assert_eq!(ask(&server, Method::PUT, "/v1/tool-servers/box", body).await.0, 204);
    let refused = server.mcp.tools.names(&Principal::default(), "box").await.expect_err("it is not started");
    let is_named = refused.message.contains("file long has 1025 bytes and one file in a sandbox may have 1024");
    assert!(is_named, "{}", refused.message);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_given_up_keeps_its_place_until_its_sandbox_is_started() {
    let server = FakeServer::with_kernel(&[("SANDBOX_TOOL_CALLS__SANDBOXES_MAX", "1")]).await;
    for name in ["box", "other"] {
        let body = json!({"server": {"image": "python", "command": COMMAND}});
        assert_eq!(ask(&server, Method::PUT, &format!("/v1/tool-servers/{name}"), body).await.0, 204);
    }
    server.engine.faults().fetching.send_replace([ImageId("sha256:fake-python".to_owned())].into());
    let (who, tools) = (Principal::default(), &server.mcp.tools);
    tokio::select! {
        told = tools.names(&who, "box") => panic!("{told:?}"),
        () = until("its sandbox is starting", async || server.engine.attempts() == 1) => {}
    }
    let refused = tools.names(&who, "other").await.expect_err("there is one place");
    assert!(refused.message.contains("1 tool servers run in sandboxes"), "{}", refused.message);
    server.engine.faults().fetching.send_replace(HashSet::new());
    server.until_live(0).await;
    server.stop().await;
}

/// The same protocol, as small as it can be.
const NODE: &str = "const lines = require('node:readline').createInterface({ input: process.stdin });
const about = { protocolVersion: '2025-06-18', capabilities: { tools: {} }, serverInfo: { name: 'n', version: '1' } };
const tools = [{ name: 'key', inputSchema: { type: 'object' }, annotations: { readOnlyHint: true } }];
const content = [{ type: 'text', text: process.env.KEY ?? 'none' }];
const results = { initialize: about, 'tools/list': { tools }, 'tools/call': { content } };
lines.on('line', (line) => {
  const { id, method } = JSON.parse(line);
  if (id === undefined) return;
  const error = { code: -32601, message: 'no such method' };
  const answer = results[method] ? { result: results[method] } : { error };
  console.log(JSON.stringify({ jsonrpc: '2.0', id, ...answer }));
});
";
