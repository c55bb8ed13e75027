//! The tools as MCP shows them: which there are, who calls, one call of a service each, and its answer as content.
//!
//! ```text
//! rmcp spawns one task for each request; a run has its own task below it, which the policy ends with it ([`waiting`])
//! ```
//!
//! Knows the protocol through rmcp and nothing of how messages travel: HTTP mounts it in `api/http/mcp.rs`, standard
//! streams in [`stdio`]. Holds no rule: the services and the arguments do.

mod cancellation;
mod content;
mod describe;
mod picture;
mod progress;
mod stdio;
mod tools;
mod waiting;

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use http::request::Parts;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CancelledNotificationParam, CustomRequest, CustomResult, ErrorCode,
        ListPromptsRequestMethod, ListPromptsResult, ListResourceTemplatesRequestMethod, ListResourceTemplatesResult,
        ListResourcesRequestMethod, ListResourcesResult, ListToolsResult, PaginatedRequestParams, ServerConfig,
    },
    service::{NotificationContext, RequestContext},
};
use tracing::info;

pub use describe::ToolName;
pub use stdio::{StdioError, serve_stdio};

use crate::{
    domain::{
        error::{Code, Failure},
        id::{ConversationId, RequestId},
        limits::Limits,
        owner::{ConversationKey, Principal},
        trace::TraceContext,
    },
    services::{files::Files, runs::Runs},
};

/// How much of an unknown name is repeated in an answer, in characters.
const NAME_CHARS_MAX: usize = 80;

/// The parts of the surface.
#[derive(Clone)]
pub struct McpParts {
    /// Runs programs, and remembers them.
    pub runs: Runs,
    /// Files of conversations.
    pub files: Arc<Files>,
    /// What is shown.
    pub options: McpOptions,
}

/// Sizes that bound or describe the tools.
#[derive(Debug, Clone, Copy)]
pub struct McpOptions {
    /// The largest picture that is shown in a result, in bytes.
    pub image_bytes_max: u64,
    /// How many pictures one result shows.
    pub images_max: usize,
    /// How much one call of `read_file` reads, in bytes.
    pub read_bytes_max: u64,
    /// The largest file that `write_file` writes, in bytes.
    pub write_bytes_max: u64,
    /// The longest program, in bytes.
    pub code_bytes_max: u64,
    /// What one run may use, for the descriptions.
    pub limits: Limits,
    /// How long a call waits for its run by default.
    pub wait_default: Duration,
}

/// Answers MCP requests. A clone is the same server.
#[derive(Clone)]
pub struct McpServer {
    parts: Arc<McpParts>,
    calls: cancellation::Calls,
    transport: Transport,
}

/// How requests arrive, which decides who the caller is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    /// A middleware authenticates each request and adds its principal.
    Http,
    /// The caller is the user who started the process.
    Stdio,
}

/// The caller, and the request's id.
#[derive(Debug)]
struct Caller {
    principal: Principal,
    request: RequestId,
    /// Its place in a trace.
    trace: Option<TraceContext>,
    /// It names tools without a dot.
    underscore: bool,
}

impl Caller {
    fn key(&self, id: ConversationId) -> ConversationKey {
        ConversationKey::new(self.principal.clone(), id)
    }

    /// A tool's name in the form that the caller uses.
    fn tool(&self, tool: ToolName) -> &'static str {
        if self.underscore { tool.underscored() } else { tool.dotted() }
    }
}

/// Among the extensions of a request's head: its client takes one answer and no notifications before it.
#[derive(Debug, Clone, Copy)]
pub struct OneAnswer;

impl McpServer {
    /// For HTTP: each request carries its principal in the extensions of its head.
    pub fn http(parts: McpParts) -> Self {
        Self::new(parts, Transport::Http)
    }

    /// The same server for another client: ids of requests are each client's own.
    #[must_use]
    pub fn for_another(&self) -> Self {
        Self { calls: cancellation::Calls::default(), ..self.clone() }
    }

    fn new(parts: McpParts, transport: Transport) -> Self {
        Self { parts: Arc::new(parts), calls: cancellation::Calls::default(), transport }
    }

    fn caller(&self, context: &RequestContext<RoleServer>) -> Result<Caller, ErrorData> {
        let head = context.extensions.get::<Parts>().map(|parts| &parts.extensions);
        let principal = match self.transport {
            Transport::Stdio => Some(Principal::default()),
            Transport::Http => head.and_then(|head| head.get::<Principal>()).cloned(),
        };
        let principal = principal.ok_or_else(|| ErrorData::invalid_request("the request has no principal", None))?;
        let request = head.and_then(|head| head.get::<RequestId>()).copied().unwrap_or_else(RequestId::new);
        let trace = head.and_then(|head| head.get::<TraceContext>()).copied();
        Ok(Caller { principal, request, trace, underscore: false })
    }
}

impl ServerHandler for McpServer {
    fn get_info(&self) -> ServerConfig {
        describe::server(&self.parts.options)
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        if request.is_some_and(|request| request.cursor.is_some()) {
            return Err(ErrorData::invalid_params(
                "cursor: the list is one page, so there is none: leave it out",
                None,
            ));
        }
        let query = context.extensions.get::<Parts>().and_then(|parts| parts.uri.query());
        let underscore = query.is_some_and(|query| query.split('&').any(|pair| pair == "names=underscore"));
        let languages: Vec<_> = self.parts.runs.runners().iter().map(|runner| runner.language.to_string()).collect();
        let tools = describe::tools(&self.parts.options, &languages, underscore);
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = ToolName::find(&request.name) else {
            let why = format!("name: there is no tool `{}`: tools/list names all there are", shown(&request.name));
            return Err(ErrorData::invalid_params(why, None));
        };
        let caller = Caller { underscore: request.name == tool.underscored(), ..self.caller(&context)? };
        let entered = self.calls.enter(context.id.clone(), context.ct.clone());
        let arguments = request.arguments.unwrap_or_default();
        // A panic in rmcp's task would leave the client without an answer.
        let answer = AssertUnwindSafe(self.parts.call(tool, &caller, arguments, &entered, &context));
        let answer = answer.catch_unwind().await;
        let failure = match answer {
            Ok(Ok(result)) => return Ok(result.into()),
            Ok(Err(failure)) => failure,
            Err(_) => Failure::new(Code::Internal, "The server failed to answer: its log says why."),
        };
        info!(request = %caller.request, tool = tool.dotted(), code = %failure.code, "a tool call failed");
        Ok(content::failure(&failure, &caller).into())
    }

    async fn on_cancelled(&self, cancelled: CancelledNotificationParam, _: NotificationContext<RoleServer>) {
        if let Some(id) = &cancelled.request_id {
            self.calls.cancel(id);
        }
    }

    /// rmcp hands over here whatever has another form than the method asks for, under the method's own name.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let method = request.method.as_str();
        let why = match method {
            "tools/call" => {
                "params: a call is {\"name\": …, \"arguments\": {…}} with a string as name and an object as arguments"
            }
            "initialize" => "params: initialize needs protocolVersion, capabilities and clientInfo {name, version}",
            "tools/list" | "server/discover" | "ping" => "params: they must be an object of this method's form",
            _ => {
                let why = format!("method: there is no `{}` here", shown(method));
                return Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, why, None));
            }
        };
        Err(ErrorData::invalid_params(why, None))
    }

    // Lists of what is not offered are refused, and not empty: the capability is not declared.

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListResourcesRequestMethod>())
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListResourceTemplatesRequestMethod>())
    }
}

fn shown(name: &str) -> String {
    name.escape_debug().take(NAME_CHARS_MAX).collect()
}
