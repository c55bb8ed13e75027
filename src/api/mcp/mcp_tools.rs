//! Finds the tools that programs may call, so that a model need not read the descriptions of all; and ipybox's call
//! that registers a server.

use std::fmt::Write as _;

use super::{
    Caller, McpParts,
    caller::ToolResult,
    content,
    describe::ToolName,
    shown::{TEXT_BYTES_MAX, shorten},
};
use crate::{
    api::schema::tools::{GetToolSource, RegisterMcpServer, SearchTools, found_limit},
    domain::{Code, Failure, Scope, text::one_line},
    services::tools::{Found, ModuleLanguage, SearchResult, ServerState},
};

impl McpParts {
    pub(super) async fn search_tools(&self, caller: &Caller, SearchTools { query, limit }: SearchTools) -> ToolResult {
        let SearchResult { tools, unanswered } =
            self.tools.search(&caller.principal, &query, found_limit(limit)?).await?;
        let mut text = String::new();
        for Found { server, tool, about, signature, module, may_destroy } in &tools {
            let asks = if *may_destroy { " [a person may be asked]" } else { "" };
            let (tool, signature) = (tool.escape_debug(), one_line(signature));
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{server}/{tool}{asks}: {about}\n  from {module} import run, Params  # {signature}");
        }
        let list = |states: &[ServerState]| {
            let one = |ServerState { name, tools, error, .. }: &ServerState| match tools {
                Some(count) => format!("{name}: {count} tools"),
                None => format!("{name}: {}", one_line(error.as_deref().unwrap_or_default())),
            };
            states.iter().map(one).collect::<Vec<_>>().join("; ")
        };
        if !unanswered.is_empty() {
            let none = if tools.is_empty() { "No tool of the other servers fits these words. " } else { "" };
            let _ = writeln!(text, "{none}Search again for the tools of these servers. {}.", list(&unanswered));
        } else if tools.is_empty() {
            // Each has answered just now.
            let servers = list(&self.tools.servers(&caller.principal).await);
            text =
                format!("No tool fits these words. Servers: {}.", if servers.is_empty() { "none" } else { &servers });
        }
        let search = caller.tool(ToolName::SearchTools);
        let mark = |_: usize, left: usize| {
            format!("\n[… {left} bytes are left out here: call {search} with other words, or with a smaller limit …]\n")
        };
        Ok(content::plain(shorten(&text, TEXT_BYTES_MAX, mark), false))
    }

    pub(super) async fn tool_source(&self, caller: &Caller, arguments: GetToolSource) -> ToolResult {
        let GetToolSource { server, tool, language } = arguments;
        let language = language.unwrap_or(ModuleLanguage::Python);
        let source = self.tools.source(&caller.principal, &server, &tool, language).await?;
        let text = source.types.unwrap_or(source.text);
        let route = "GET /v1/tools/{server}/{tool}/source";
        let mark = |_: usize, left: usize| format!("\n[… {left} bytes are left out here: {route} shows them …]\n");
        Ok(content::plain(shorten(&text, TEXT_BYTES_MAX, mark), false))
    }

    /// For the caller's own programs. Answers as ipybox does: the names of the tools, each in a text of its own.
    pub(super) async fn register_mcp_server(&self, caller: &Caller, arguments: RegisterMcpServer) -> ToolResult {
        let RegisterMcpServer { server_name, server_params } = arguments;
        if caller.check_scope(Scope::Admin).is_err() {
            let why = "Registering tool servers needs the scope admin: ask the operator to add the server.";
            return Err(Failure::new(Code::InsufficientScope, why));
        }
        let text = server_params.server(caller.principal.name())?;
        let name = self.tools.register(&caller.principal, &server_name, &text).await;
        let own_name = |failure: Failure| failure.renamed("name", "server_name").renamed("server", "server_params");
        let name = name.map_err(own_name)?;
        let tools = self.tools.names(&caller.principal, &name).await?;
        Ok(content::texts(tools))
    }
}
