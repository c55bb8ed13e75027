//! What each scope opens, by path and by tool.

use reqwest::Method;
use serde_json::{Value, json};

use super::{call, create};
use crate::support::{
    FakeServer,
    fake_server::{Kind, on_each_database},
};

on_each_database! {
    each_path_needs_its_scope_and_no_other
    tools_are_listed_and_answered_by_scope
}

const RUN: &str = "run";
const FILES: &str = "files";
const APPROVE: &str = "approve";
const ADMIN: &str = "admin";

/// What no token of one scope has.
const RUN_AND_FILES: &str = "run and files";

/// A method, a path, and what it needs; an empty text for any token.
const PATHS: [(&str, &str, &str); 76] = [
    ("GET", "/v1/runners", ""),
    ("GET", "/v1/conversations", ""),
    ("GET", "/v1/runs", RUN),
    ("POST", "/v1/runs", RUN),
    ("GET", "/v1/runs/run-00000000000000000000000000000000", RUN),
    ("POST", "/v1/runs/run-00000000000000000000000000000000/cancel", RUN),
    ("GET", "/v1/runs/run-00000000000000000000000000000000/events", RUN),
    ("GET", "/v1/sessions", RUN),
    ("POST", "/v1/sessions", RUN),
    ("POST", "/v1/sessions/session-00000000000000000000000000000000/cells", RUN),
    ("DELETE", "/v1/conversations/c", FILES),
    ("GET", "/v1/conversations/c/files", FILES),
    ("GET", "/v1/conversations/c/files/f", FILES),
    ("PUT", "/v1/conversations/c/files/f", FILES),
    ("DELETE", "/v1/conversations/c/files/f", FILES),
    ("POST", "/v1/conversations/c/move", FILES),
    ("GET", "/v1/conversations/c/archive", FILES),
    ("PUT", "/v1/conversations/c/archive", FILES),
    ("POST", "/v1/conversations/c/archive/link", FILES),
    ("GET", "/v1/skills", FILES),
    ("GET", "/v1/tools", RUN),
    ("GET", "/v1/network/decisions", RUN),
    ("POST", "/v1/check", RUN),
    ("POST", "/v1/execute", RUN),
    ("GET", "/v1/approvals", APPROVE),
    ("POST", "/v1/approvals/none", APPROVE),
    ("GET", "/v1/tool-servers", ADMIN),
    ("GET", "/v1/admin/network", ADMIN),
    ("GET", "/v1/tokens", ADMIN),
    ("POST", "/v1/tokens", ADMIN),
    ("DELETE", "/v1/tokens/token-00000000000000000000000000000000", ADMIN),
    ("GET", "/v1/connections", ADMIN),
    ("DELETE", "/v1/connections/token-00000000000000000000000000000000", ADMIN),
    ("POST", "/v1/connections/token-00000000000000000000000000000000/allow", ADMIN),
    ("GET", "/v1/history", ADMIN),
    ("GET", "/v1/usage", ADMIN),
    ("GET", "/v1/owners", ADMIN),
    ("GET", "/v1/admin/overview", ADMIN),
    ("GET", "/v1/admin/activity", ADMIN),
    ("GET", "/v1/admin/runs", ADMIN),
    ("GET", "/v1/admin/conversations", ADMIN),
    ("GET", "/v1/admin/doctor", ADMIN),
    ("POST", "/v1/admin/runs/run-00000000000000000000000000000000/cancel", ADMIN),
    ("DELETE", "/v1/admin/sessions/session-00000000000000000000000000000000", ADMIN),
    ("DELETE", "/v1/admin/conversations/ann/c", ADMIN),
    ("GET", "/metrics", ADMIN),
    ("GET", "/api/v2/runtimes", ""),
    ("POST", "/api/v2/execute", RUN),
    ("POST", "/execute", RUN),
    ("GET", "/mcp/events", RUN),
    ("GET", "/jupyter/api/kernelspecs", ""),
    ("GET", "/jupyter/api/kernels", RUN),
    ("POST", "/jupyter/api/sessions", RUN),
    ("GET", "/jupyter/api/contents", FILES),
    // A conversation may have any name.
    ("GET", "/jupyter/c/api/api/kernelspecs", ""),
    ("GET", "/jupyter/c/api/api/kernels", RUN),
    ("POST", "/jupyter/c/api/api/sessions", RUN),
    ("GET", "/jupyter/c/api/api/contents", FILES),
    ("GET", "/jupyter/c/contents/api/kernels", RUN),
    ("GET", "/v1/executions/run-00000000000000000000000000000000", RUN),
    ("POST", "/v1/conversations/c/packages", RUN),
    ("GET", "/v1/browser/sessions/", RUN),
    ("GET", "/v1/runners/none/modules/json", RUN),
    ("POST", "/upload", FILES),
    ("POST", "/download", FILES),
    ("GET", "/openai/v1/containers/files", RUN),
    ("POST", "/openai/v1/containers", RUN),
    ("GET", "/openai/v1/containers/c/files", FILES),
    ("DELETE", "/openai/v1/containers/c/files/f", FILES),
    ("DELETE", "/openai/v1/containers/c", RUN_AND_FILES),
    ("DELETE", "/e2b/sandboxes/c", RUN_AND_FILES),
    ("DELETE", "/e2b/contexts/c", RUN),
    ("POST", "/e2b/filesystem.Filesystem/MakeDir", RUN),
    ("POST", "/e2b/filesystem.Filesystem/Move", FILES),
    ("POST", "/librechat/v1/exec", RUN),
    ("POST", "/librechat/v1/upload", FILES),
];

async fn tools(server: &FakeServer, token: &str) -> Vec<String> {
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let (status, answer) = call(server, token, Method::POST, "/mcp", Some(list)).await;
    assert_eq!(status, 200, "{answer}");
    let tools = answer["result"]["tools"].as_array().expect("a list");
    tools.iter().map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect()
}

async fn tool(server: &FakeServer, token: &str, name: &str, arguments: Value) -> String {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": name, "arguments": arguments}});
    call(server, token, Method::POST, "/mcp", Some(body)).await.1.to_string()
}

async fn each_path_needs_its_scope_and_no_other(kind: Kind) {
    let server = FakeServer::by(kind, &[]).await;
    for scope in [RUN, FILES, APPROVE, ADMIN] {
        let (_, token) = create(&server, json!({"name": scope, "owner": "ann", "scopes": [scope]})).await;
        for (method, path, needed) in PATHS {
            let method: Method = method.parse().expect("a method");
            // What a handler refuses in an empty body is told before anything is done.
            let body = (method == Method::POST || method == Method::PUT).then(|| json!({}));
            let answer = super::send(&server, &token, method.clone(), path, body).await;
            let is_open = needed.is_empty() || needed == scope;
            assert_eq!(answer.status() != 403, is_open, "{method} {path} with {scope}: {}", answer.status());
        }
    }
    let (_, token) = create(&server, json!({"name": "both", "owner": "ann", "scopes": [RUN, FILES]})).await;
    for (method, path, _) in PATHS.into_iter().filter(|(_, _, needed)| *needed == RUN_AND_FILES) {
        let method: Method = method.parse().expect("a method");
        assert_eq!(super::send(&server, &token, method, path, None).await.status(), 404, "{path}");
    }
    server.stop().await;
}

async fn tools_are_listed_and_answered_by_scope(kind: Kind) {
    let server = FakeServer::by(kind, &[]).await;
    let (_, run) = create(&server, json!({"name": "a", "owner": "ann", "scopes": ["run"]})).await;
    let (_, files) = create(&server, json!({"name": "a", "owner": "ann", "scopes": ["files"]})).await;
    let (of_run, of_files) = (tools(&server, &run).await, tools(&server, &files).await);
    assert!(of_run.contains(&"sandbox_run_cell".to_owned()) && !of_run.contains(&"sandbox_read_file".to_owned()));
    assert!(of_files.contains(&"sandbox_read_file".to_owned()), "{of_files:?}");
    assert!(!of_files.iter().any(|name| of_run.contains(name)), "{of_files:?} {of_run:?}");
    let refused = tool(&server, &files, "sandbox.run_code", json!({"language": "python", "code": "print x"})).await;
    assert!(refused.contains("lacks the scope `run`"), "{refused}");
    let refused = tool(&server, &run, "sandbox_list_files", json!({"conversationId": "c"})).await;
    assert!(refused.contains("lacks the scope `files`"), "{refused}");
    let read = json!({"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "sandbox://c/f"}});
    let (_, refused) = call(&server, &run, Method::POST, "/mcp", Some(read)).await;
    assert!(refused.to_string().contains("lacks the scope `files`"), "{refused}");
    server.stop().await;
}
