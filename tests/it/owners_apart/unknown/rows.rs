//! The requests with an id in them, and how an unknown id is answered.

use reqwest::Method;
use serde_json::{Value, json};

/// A file of a conversation, as MCP names it.
const FILE: &str = "sandbox://files/ID/f";
/// What the path of a request ends in whose id is in a header, which names a session of MCP or a sandbox of E2B.
pub const IN_HEADER: &str = "#ID";

/// What is answered with 200 and not with 404: lists, of what is not there and from an id on, and MCP, which says it in
/// the body.
const ANSWERED: [&str; 7] = [
    "/v1/conversations/ID/files",
    "/v1/runs?conversationId=ID",
    "/v1/sessions?conversationId=ID",
    "/v1/runs?after=ID",
    "/v1/conversations?after=ID",
    "/librechat/v1/files/ID",
    "/mcp",
];

/// The routes of operators, which refuse a token without their scope before they look at an id.
const OF_OPERATORS: [&str; 5] = ["/v1/admin/", "/v1/tokens/", "/v1/connections/", "/v1/tool-servers/", "/v1/history"];

/// A request with an id: its kind, and the request with `ID` in its place.
pub type Row = (Method, usize, &'static str, Option<Value>);

pub const KINDS: usize = 13;
pub const CONVERSATION: usize = 0;
pub const RUN: usize = 1;
pub const SESSION: usize = 2;
pub const KERNEL: usize = 3;
pub const CONTAINER: usize = 4;
pub const SANDBOX: usize = 5;
pub const LIBRECHAT: usize = 6;
pub const QUESTION: usize = 7;
pub const MCP_SESSION: usize = 8;
/// What Jupyter calls a session.
pub const DOCUMENT: usize = 9;
pub const TOOL_SERVER: usize = 10;
pub const SKILL: usize = 11;
pub const TOKEN: usize = 12;

pub fn rows() -> Vec<Row> {
    [of_this_server(), of_other_products(), of_mcp(), of_operators()].concat()
}

/// A cell of a session.
fn cell() -> Value {
    json!({"code": "print x"})
}

fn of_this_server() -> Vec<Row> {
    vec![
        (Method::GET, CONVERSATION, "/v1/conversations/ID/files", None),
        (Method::GET, CONVERSATION, "/v1/conversations/ID/files/f", None),
        (Method::DELETE, CONVERSATION, "/v1/conversations/ID/files/f", None),
        (Method::POST, CONVERSATION, "/v1/conversations/ID/move", Some(json!({"from": "f", "to": "g"}))),
        (Method::GET, CONVERSATION, "/v1/conversations/ID/archive", None),
        (Method::POST, CONVERSATION, "/v1/conversations/ID/archive/link", None),
        (Method::DELETE, CONVERSATION, "/v1/conversations/ID", None),
        (Method::GET, CONVERSATION, "/v1/runs?conversationId=ID", None),
        (Method::GET, CONVERSATION, "/v1/sessions?conversationId=ID", None),
        (Method::GET, RUN, "/v1/runs/ID", None),
        (Method::GET, RUN, "/v1/runs/ID/events", None),
        (Method::POST, RUN, "/v1/runs/ID/cancel", None),
        (Method::POST, RUN, "/v1/runs/ID/stdin", None),
        (Method::GET, SESSION, "/v1/sessions/ID", None),
        (Method::POST, SESSION, "/v1/sessions/ID/cells", Some(cell())),
        (Method::POST, SESSION, "/v1/sessions/ID/interrupt", None),
        (Method::POST, SESSION, "/v1/sessions/ID/restart", None),
        (Method::DELETE, SESSION, "/v1/sessions/ID", None),
        (Method::POST, SESSION, "/v1/sessions/ID/complete", Some(cell())),
        (Method::POST, SESSION, "/v1/sessions/ID/inspect", Some(cell())),
        (Method::GET, RUN, "/v1/runs?after=ID", None),
        (Method::GET, CONVERSATION, "/v1/conversations?after=ID", None),
        (Method::GET, QUESTION, "/v1/approvals/ID", None),
        (Method::POST, QUESTION, "/v1/approvals/ID", Some(json!({"answer": "no"}))),
        (Method::DELETE, QUESTION, "/v1/approvals/ID", None),
        (Method::GET, TOOL_SERVER, "/v1/tools/ID/look/source", None),
        (Method::GET, SKILL, "/v1/skills/ID", None),
        (Method::GET, SKILL, "/v1/skills/ID/files/SKILL.md", None),
        (Method::DELETE, SKILL, "/v1/skills/ID", None),
    ]
}

fn of_other_products() -> Vec<Row> {
    vec![
        (Method::GET, CONVERSATION, "/jupyter/c/ID/api/contents/f", None),
        (Method::PATCH, CONVERSATION, "/jupyter/c/ID/api/contents/f", Some(json!({"path": "g"}))),
        (Method::DELETE, CONVERSATION, "/jupyter/c/ID/api/contents/f", None),
        (Method::POST, KERNEL, "/jupyter/api/kernels/ID/interrupt", None),
        (Method::GET, KERNEL, "/jupyter/api/kernels/ID", None),
        (Method::DELETE, KERNEL, "/jupyter/api/kernels/ID", None),
        (Method::POST, KERNEL, "/jupyter/api/kernels/ID/restart", None),
        (Method::GET, KERNEL, "/jupyter/api/kernels/ID/channels", None),
        (Method::GET, DOCUMENT, "/jupyter/api/sessions/ID", None),
        (Method::PATCH, DOCUMENT, "/jupyter/api/sessions/ID", Some(json!({"path": "m.ipynb"}))),
        (Method::DELETE, DOCUMENT, "/jupyter/api/sessions/ID", None),
        (Method::GET, SESSION, "/v1/sessions/status/ID", None),
        (Method::GET, SESSION, "/v1/sessions/session/ID", None),
        (Method::DELETE, SESSION, "/v1/sessions/session?session_id=ID", None),
        (Method::GET, SESSION, "/v1/browser/sessions/ID", None),
        (Method::DELETE, SESSION, "/v1/browser/sessions/ID", None),
        (Method::POST, SESSION, "/v1/browser/navigate", Some(in_browser(json!({"url": "https://set.example/"})))),
        (Method::POST, SESSION, "/v1/browser/content", Some(in_browser(json!({})))),
        (Method::POST, SESSION, "/v1/browser/interactions/click", Some(in_browser(json!({"selector": "a"})))),
        (Method::POST, SESSION, "/v1/browser/interactions/screenshot", Some(in_browser(json!({})))),
        (Method::POST, SESSION, "/execute_async", Some(json!({"code": "print x", "session_id": "ID"}))),
        (Method::POST, SESSION, "/v1/execute", Some(json!({"code": "print x", "session_id": "ID"}))),
        (Method::POST, SESSION, "/download", Some(json!({"filename": "f", "session_id": "ID"}))),
        (Method::POST, SESSION, "/kill", Some(json!({"session_id": "ID"}))),
        (Method::GET, RUN, "/v1/executions/ID", None),
        (Method::GET, CONTAINER, "/openai/v1/containers/ID", None),
        (Method::GET, CONTAINER, "/openai/v1/containers?after=ID", None),
        (Method::GET, CONTAINER, "/openai/v1/containers/ID/files", None),
        (Method::POST, CONTAINER, "/openai/v1/containers/ID/files", Some(json!({"file_id": "f"}))),
        (Method::DELETE, CONTAINER, "/openai/v1/containers/ID", None),
        (Method::GET, CONTAINER, "/openai/v1/containers/ID/files/f", None),
        (Method::GET, CONTAINER, "/openai/v1/containers/ID/files/f/content", None),
        (Method::DELETE, CONTAINER, "/openai/v1/containers/ID/files/f", None),
        (Method::GET, SANDBOX, "/e2b/sandboxes/ID", None),
        (Method::DELETE, SANDBOX, "/e2b/sandboxes/ID", None),
        (Method::POST, SANDBOX, "/e2b/sandboxes/ID/timeout", Some(json!({"timeout": 60}))),
        (Method::POST, SANDBOX, "/e2b/sandboxes/ID/connect", Some(json!({"timeout": 60}))),
        (Method::GET, SANDBOX, "/e2b/health#ID", None),
        (Method::GET, SANDBOX, "/e2b/files?path=/home/user/f#ID", None),
        (Method::POST, SANDBOX, "/e2b/execute#ID", Some(cell())),
        (Method::GET, SANDBOX, "/e2b/contexts#ID", None),
        (Method::POST, SANDBOX, "/e2b/filesystem.Filesystem/ListDir#ID", Some(json!({"path": "/home/user"}))),
        (Method::POST, SANDBOX, "/e2b/filesystem.Filesystem/Stat#ID", Some(json!({"path": "/home/user/f"}))),
        (Method::POST, SANDBOX, "/e2b/filesystem.Filesystem/Remove#ID", Some(json!({"path": "/home/user/f"}))),
        (Method::GET, LIBRECHAT, "/librechat/v1/files/ID", None),
        (Method::GET, LIBRECHAT, "/librechat/v1/files/ID/f", None),
        (Method::GET, LIBRECHAT, "/librechat/v1/download/ID/f", None),
        (Method::GET, LIBRECHAT, "/librechat/v1/sessions/ID/objects/f", None),
        (Method::DELETE, LIBRECHAT, "/librechat/v1/files/ID/f", None),
    ]
}

fn of_mcp() -> Vec<Row> {
    vec![
        tool(CONVERSATION, "sandbox_read_file", &json!({"conversationId": "ID", "path": "f"})),
        tool(CONVERSATION, "sandbox_delete_file", &json!({"conversationId": "ID", "path": "f"})),
        tool(CONVERSATION, "sandbox_list_files", &json!({"conversationId": "ID"})),
        tool(CONVERSATION, "sandbox_list_sessions", &json!({"conversationId": "ID"})),
        tool(CONVERSATION, "sandbox_interrupt", &json!({"conversationId": "ID"})),
        tool(CONVERSATION, "sandbox_reset_session", &json!({"conversationId": "ID"})),
        (Method::POST, CONVERSATION, "/mcp", Some(mcp(Some(1), "resources/read", &json!({"uri": FILE})))),
        tool(RUN, "sandbox_get_run", &json!({"runId": "ID"})),
        tool(RUN, "sandbox_cancel_run", &json!({"runId": "ID"})),
        (Method::GET, MCP_SESSION, "/mcp#ID", None),
        (Method::POST, MCP_SESSION, "/mcp#ID", Some(mcp(Some(7), "tools/list", &json!({})))),
        (Method::POST, MCP_SESSION, "/mcp#ID", Some(mcp(None, "notifications/cancelled", &json!({"requestId": 1})))),
        (Method::DELETE, MCP_SESSION, "/mcp#ID", None),
        tool(SKILL, "get_skill_info", &json!({"skill_name": "ID"})),
        tool(SKILL, "get_skill_file", &json!({"skill_name": "ID", "filename": "SKILL.md"})),
    ]
}

fn of_operators() -> Vec<Row> {
    vec![
        (Method::DELETE, CONVERSATION, "/v1/admin/conversations/bob/ID", None),
        (Method::POST, RUN, "/v1/admin/runs/ID/cancel", None),
        (Method::DELETE, SESSION, "/v1/admin/sessions/ID", None),
        (Method::GET, CONVERSATION, "/v1/history?conversationId=ID", None),
        (Method::DELETE, TOKEN, "/v1/tokens/ID", None),
        (Method::DELETE, TOKEN, "/v1/connections/ID", None),
        (Method::DELETE, TOOL_SERVER, "/v1/tool-servers/ID", None),
    ]
}

/// The body of a request to the browser of a session.
fn in_browser(mut body: Value) -> Value {
    body["session_id"] = "ID".into();
    body
}

/// The status of the answer to a request with an unknown id.
pub fn expected(path: &str) -> u16 {
    match path {
        _ if ANSWERED.contains(&path) => 200,
        _ if OF_OPERATORS.iter().any(|route| path.starts_with(route)) => 403,
        // An empty page would be taken for the end of the list.
        "/openai/v1/containers?after=ID" => 400,
        // By this status E2B's clients recognize a sandbox that is gone.
        _ if path.starts_with("/e2b/") && path.ends_with(IN_HEADER) => 502,
        _ => 404,
    }
}

fn tool(kind: usize, name: &str, arguments: &Value) -> Row {
    (Method::POST, kind, "/mcp", Some(mcp(Some(1), "tools/call", &json!({"name": name, "arguments": arguments}))))
}

/// A request, or a notification, which has no id.
pub fn mcp(id: Option<u32>, method: &str, params: &Value) -> Value {
    let mut message = json!({"jsonrpc": "2.0", "method": method, "params": params});
    if let Some(id) = id {
        message["id"] = id.into();
    }
    message
}
