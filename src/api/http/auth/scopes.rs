//! Which scope a path needs. MCP decides by the tool, in `api::mcp`.

use axum::http::Method;

use crate::{
    domain::{error::Failure, token::Scope},
    services::tokens::Token,
};

/// # Errors
/// [`crate::domain::error::Code::InsufficientScope`].
pub(super) fn check(token: &Token, method: &Method, path: &str) -> Result<(), Failure> {
    if removes_container(method, path) {
        token.check_scope(Scope::Run)?;
    }
    needed(method, path).map_or(Ok(()), |scope| token.check_scope(scope))
}

/// Whether a request cancels the runs of a conversation before it deletes the files. The deletion of a conversation is
/// refused while a run is under way, so `files` is enough for it.
fn removes_container(method: &Method, path: &str) -> bool {
    let id = path.strip_prefix("/e2b/sandboxes/").or_else(|| path.strip_prefix("/openai/v1/containers/"));
    method == Method::DELETE && id.is_some_and(|id| !id.contains('/'))
}

/// `None` where any token is enough: lists that show what there is, and MCP.
fn needed(method: &Method, path: &str) -> Option<Scope> {
    let mut parts = path.split('/').skip(1);
    match (parts.next()?, parts.next(), parts.next(), parts.next()) {
        ("v1", Some("tokens" | "connections" | "history" | "usage" | "owners" | "admin" | "tool-servers"), ..)
        | ("metrics", ..) => Some(Scope::Admin),
        ("v1", Some("approvals"), ..) => Some(Scope::Approve),
        ("v1", Some("skills"), ..) => Some(Scope::Files),
        ("v1", Some("runs" | "sessions" | "executions" | "browser" | "network" | "tools"), ..)
        | ("mcp", Some("events"), ..)
        // An installation runs programs, a program reads the source of a module, and a command makes a folder.
        | ("v1", Some("conversations"), Some(_), Some("packages"))
        | ("v1", Some("runners"), Some(_), _)
        | ("e2b", Some("filesystem.Filesystem"), Some("MakeDir"), _) => Some(Scope::Run),
        ("v1", Some("conversations"), id, of_it) => {
            let is_list = id.is_none() || (of_it.is_none() && method == Method::GET);
            (!is_list).then_some(Scope::Files)
        }
        ("v1", ..) if method == Method::GET => None,
        ("api", _, Some("runtimes" | "packages"), None) | ("mcp", ..) => None,
        // CodeRunner's.
        ("upload" | "download", ..)
        | ("librechat", _, Some("upload" | "download" | "files" | "sessions"), _)
        | ("e2b", Some("files" | "filesystem.Filesystem"), ..) => Some(Scope::Files),
        // Deletes a conversation.
        ("e2b" | "openai", ..) if method == Method::DELETE && !path.starts_with("/e2b/contexts/") => Some(Scope::Files),
        ("openai", ..) if parts.next() == Some("files") => Some(Scope::Files),
        ("jupyter", ..) => jupyter(path),
        _ => Some(Scope::Run),
    }
}

/// By the place in the path: any name may be that of a conversation.
fn jupyter(path: &str) -> Option<Scope> {
    let mut parts = path.split('/').skip(2);
    let mut api = parts.next();
    if api == Some("c") {
        api = parts.nth(1);
    }
    match (api, parts.next()) {
        (Some("api"), None | Some("" | "status" | "kernelspecs")) => None,
        (Some("api"), Some("contents")) => Some(Scope::Files),
        _ => Some(Scope::Run),
    }
}
