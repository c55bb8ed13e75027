//! The tools as MCP shows them: which there are, who calls, one call of a service each, and its answer as content.
//!
//! ```text
//! rmcp spawns one task for each request; a run has its own task below it, which the policy ends with it ([`waiting`])
//! a session has tasks that send notifications, see [`resources`]
//! ```
//!
//! Knows the protocol through rmcp and nothing of how messages travel: HTTP mounts it in `api/http/mcp.rs`, standard
//! streams in [`stdio`]. Holds no rule: the services and the arguments do.

mod browsing;
mod caller;
mod content;
mod describe;
mod picture;
mod progress;
mod questions;
mod resources;
mod sessions;
mod shown;
mod skills;
mod stdio;
mod tools;
mod waiting;

use std::{
    iter,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::FutureExt;
use http::request::Parts;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CancelTaskParams, CancelledNotificationParam, CustomRequest,
        CustomResult, ErrorCode, Extensions, GetSkillRequestParams, GetSkillResult, GetTaskParams, GetTaskResult,
        JsonObject, ListPromptsRequestMethod, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult,
        ListSkillsResult, ListToolsResult, ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse,
        ServerConfig, SubscribeRequestParams, SubscriptionFilter, UnsubscribeRequestParams, UpdateTaskParams,
    },
    service::{NotificationContext, SubscriptionContext},
};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tracing::info;

use self::{
    caller::{Caller, Calls, Context, McpResult, PageRequest, ToolCall, ToolResponse},
    questions::RepeatedCall,
    resources::{FOLLOWED_MAX, FileChanges, Followed, Sink, URIS_BYTES_MAX},
};
pub use self::{
    caller::{Client, McpParts, View},
    describe::{Group, McpOptions, ToolName},
    picture::Downscaler,
    questions::OpenQuestions,
    sessions::shared_conversation,
    stdio::{BATCH_MESSAGES_MAX, ID_CHARS_MAX, StdioError, serve_stdio},
};
use crate::{
    api::schema::parse::{Source, parse},
    domain::{Code, ConversationId, Failure, Principal, TraceContext, id::RequestId, text},
    services::{browser, tokens::Token},
};

/// Answers the MCP requests of one client: ids of requests and subscriptions are each client's own.
pub struct McpServer {
    parts: Arc<McpParts>,
    calls: Calls,
    followed: Followed,
    /// Whether the client is notified of changed languages; once, however often it says that it is ready.
    follows_languages: AtomicBool,
    transport: Transport,
}

/// How requests arrive, which decides who the caller is.
#[derive(Debug)]
enum Transport {
    /// A middleware authenticates each request and adds its principal.
    Http,
    /// The caller is the user who started the process. It serves one client, which has this conversation.
    Stdio(ConversationId),
}

impl McpServer {
    /// For HTTP: each request carries its principal in the extensions of its head.
    pub fn http(parts: Arc<McpParts>) -> Self {
        Self::new(parts, Transport::Http)
    }

    fn new(parts: Arc<McpParts>, transport: Transport) -> Self {
        let (calls, followed, follows_languages) = (Calls::default(), Followed::default(), AtomicBool::default());
        Self { parts, calls, followed, follows_languages, transport }
    }

    fn caller(&self, extensions: &Extensions) -> McpResult<Caller> {
        let head = extensions.get::<Parts>().map(|parts| &parts.extensions);
        let request = head.and_then(|head| head.get::<RequestId>()).copied().unwrap_or_else(RequestId::new);
        let trace = head.and_then(|head| head.get::<TraceContext>()).copied();
        let client = head.and_then(|head| head.get::<Client>());
        let (principal, session, conversation) = match &self.transport {
            // The process ends with its client.
            Transport::Stdio(own) => (Some(Principal::default()), Some(CancellationToken::new()), Some(own.clone())),
            Transport::Http => (
                head.and_then(|head| head.get::<Principal>()).cloned(),
                client.and_then(|client| client.session.clone()),
                client.and_then(|client| client.conversation.clone()),
            ),
        };
        let principal = principal.ok_or_else(|| ErrorData::invalid_request("the request has no principal", None))?;
        let view = client.map_or(self.parts.options.view, |client| client.view);
        let token = head.and_then(|head| head.get::<Arc<Token>>()).cloned();
        Ok(Caller { principal, token, request, trace, view, session, conversation })
    }
}

impl ServerHandler for McpServer {
    fn get_info(&self) -> ServerConfig {
        describe::server(self.parts.skills.is_on())
    }

    async fn list_tools(&self, request: PageRequest, context: Context) -> McpResult<ListToolsResult> {
        one_page(request)?;
        let caller = self.caller(&context.extensions)?;
        let (owner, runs) = (&caller.principal, &self.parts.runs);
        let offered = describe::Offered {
            owner,
            hosts: &runs.network().hosts(owner),
            secrets: &runs.network().secrets(owner),
            installs: self.parts.packages.is_offered(owner),
            browses: browser::check(runs, owner).is_ok(),
            skills: self.parts.skills.is_on(),
            tools: self.parts.tools.is_offered(owner),
        };
        // Over standard streams no server takes an upload.
        let takes = |tool: ToolName| tool != ToolName::UploadUrl || matches!(self.transport, Transport::Http);
        let may = |tool: ToolName| takes(tool) && caller.check_scope(tool.scope()).is_ok();
        let tools = describe::tools(&self.parts.options, &runs.runners(), &offered, caller.view, may);
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(&self, request: CallToolRequestParams, context: Context) -> McpResult<CallToolResponse> {
        let Some(tool) = ToolName::find(&request.name) else {
            let name = text::shown(&request.name);
            return Err(ErrorData::invalid_params(format!("name: there is no tool `{name}`: see tools/list"), None));
        };
        let mut caller = self.caller(&context.extensions)?;
        // A bare call names no revision.
        let has_links = context.protocol_version().is_none_or(|version| knows_links(&version));
        caller.view.links &= has_links || caller.session.is_none();
        let repeated = match caller.check_scope(tool.scope()).and_then(|()| RepeatedCall::of(&request)) {
            Ok(repeated) => repeated,
            Err(failure) => return Ok(content::failure(&caller, &failure).into()),
        };
        let entry = self.calls.register(context.id.clone(), (context.ct.clone(), caller.session.clone()), repeated);
        let arguments = request.arguments.unwrap_or_default();
        let call = ToolCall { caller: &caller, entry: &entry, context: &context };
        // A panic in rmcp's task would leave the client without an answer.
        let answer = AssertUnwindSafe(self.parts.call(tool, call, arguments));
        let failure = match answer.catch_unwind().await {
            Ok(Ok(result)) => return Ok(result),
            Ok(Err(failure)) => failure,
            Err(_) => Failure::new(Code::Internal, "The server failed to answer: its log says why."),
        };
        let (request, tool, why) = (caller.request, tool.dotted(), failure.message.as_str());
        info!(%request, tool, code = %failure.code, why, "a tool call failed");
        Ok(content::failure(&caller, &failure).into())
    }

    async fn get_task(&self, request: GetTaskParams, context: Context) -> McpResult<GetTaskResult> {
        self.parts.task(&self.caller(&context.extensions)?, &request.task_id).await
    }

    /// A question is never one of a task: it is asked by the answer to the call.
    async fn update_task(&self, request: UpdateTaskParams, context: Context) -> McpResult<()> {
        self.parts.task(&self.caller(&context.extensions)?, &request.task_id).await.map(drop)
    }

    async fn cancel_task(&self, request: CancelTaskParams, context: Context) -> McpResult<()> {
        self.parts.cancel_task(&self.caller(&context.extensions)?, &request.task_id)
    }

    async fn on_cancelled(&self, cancelled: CancelledNotificationParam, _: NotificationContext<RoleServer>) {
        if let Some(id) = &cancelled.request_id {
            self.calls.cancel(id);
        }
    }

    /// rmcp hands over here whatever has another form than the method asks for, under the method's own name.
    async fn on_custom_request(&self, request: CustomRequest, context: Context) -> McpResult<CustomResult> {
        let modern = ProtocolVersion::V_2026_07_28;
        let is_modern = context.protocol_version().is_some_and(|version| version.as_str() >= modern.as_str());
        Err(unfit(request.method.as_str(), is_modern))
    }

    /// Not offered, so the list is refused and not empty: the capability is not declared.
    async fn list_prompts(&self, _: PageRequest, _: Context) -> McpResult<ListPromptsResult> {
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    /// Skills. There are files only in a conversation, which this request does not name.
    async fn list_resources(&self, request: PageRequest, context: Context) -> McpResult<ListResourcesResult> {
        one_page(request)?;
        let caller = self.caller(&context.extensions)?;
        Ok(ListResourcesResult::with_all_items(self.parts.skill_resources(&caller).await))
    }

    async fn list_resource_templates(
        &self,
        request: PageRequest,
        _: Context,
    ) -> McpResult<ListResourceTemplatesResult> {
        one_page(request)?;
        let skills = self.parts.skills.is_on().then(skills::template);
        let templates = iter::once(resources::template()).chain(skills).collect();
        Ok(ListResourceTemplatesResult::with_all_items(templates))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: Context,
    ) -> McpResult<ReadResourceResponse> {
        let caller = self.caller(&context.extensions)?;
        if request.uri.starts_with(skills::SCHEME) {
            return Ok(self.parts.read_skill_resource(&caller, &request.uri).await?.into());
        }
        Ok(self.parts.read_resource(&caller, request.uri).await?.into())
    }

    async fn list_skills(&self, request: PageRequest, context: Context) -> McpResult<ListSkillsResult> {
        let caller = self.caller(&context.extensions)?;
        self.parts.skill_page(&caller, request.and_then(|request| request.cursor)).await
    }

    async fn get_skill(&self, request: GetSkillRequestParams, context: Context) -> McpResult<GetSkillResult> {
        self.parts.skill_entry(&self.caller(&context.extensions)?, &request.uri).await
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        let Ok(Caller { session: Some(ended), .. }) = self.caller(&context.extensions) else { return };
        if self.follows_languages.swap(true, Ordering::Relaxed) {
            return;
        }
        let (runs, sink) = (self.parts.runs.clone(), Sink::Session(context.peer));
        tokio::spawn(async move { ended.run_until_cancelled(resources::follow_languages(&runs, &sink)).await });
    }

    async fn subscribe(&self, request: SubscribeRequestParams, context: Context) -> McpResult<()> {
        let caller = self.caller(&context.extensions)?;
        let key = self.parts.file_of(&caller, &request.uri)?;
        let Some(ended) = caller.session.filter(|_| !progress::takes_one_answer(&context)) else {
            return Err(ErrorData::invalid_request("there is no session that could be notified: open one first", None));
        };
        let Some(is_first) = self.followed.add(key, request.uri) else {
            let why = format!(
                "uri: a client may follow {FOLLOWED_MAX} files, by URIs of {URIS_BYTES_MAX} bytes together: \
                 unsubscribe from one, or give a shorter one"
            );
            return Err(ErrorData::invalid_params(why, None));
        };
        if is_first {
            // Before the answer: what changes after it is announced.
            let changes = FileChanges::new(&self.parts, &caller.principal);
            let (followed, sink) = (self.followed.clone(), Sink::Session(context.peer));
            tokio::spawn(async move { ended.run_until_cancelled(changes.follow(&followed, &sink)).await });
        }
        Ok(())
    }

    async fn unsubscribe(&self, request: UnsubscribeRequestParams, context: Context) -> McpResult<()> {
        self.followed.remove(&self.parts.file_of(&self.caller(&context.extensions)?, &request.uri)?);
        Ok(())
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(resources::within_bounds(requested.clone()))
    }

    async fn listen(&self, subscription: SubscriptionContext) -> McpResult<()> {
        let caller = self.caller(&subscription.request_context().extensions)?;
        resources::listen(&self.parts, &caller, &subscription).await;
        Ok(())
    }
}

impl McpParts {
    /// Calls a tool. The answer may be a question, after which the call is repeated.
    ///
    /// # Errors
    /// Arguments that break a rule, and failures of ours. A program that fails is a result.
    async fn call(&self, tool: ToolName, call: ToolCall<'_>, arguments: JsonObject) -> ToolResponse {
        let caller = call.caller;
        let result = match tool {
            ToolName::RunCode => return self.run_code(call, read(arguments)?).await,
            ToolName::GetRun => self.get_run(call, read(arguments)?).await,
            ToolName::CancelRun => self.cancel_run(caller, read(arguments)?).await,
            ToolName::ListRunners => Ok(self.list_runners(caller, read(arguments)?)),
            ToolName::ListFiles => self.list_files(caller, read(arguments)?).await,
            ToolName::ReadFile => self.read_file(caller, read(arguments)?).await,
            ToolName::WriteFile => self.write_file(caller, read(arguments)?).await,
            ToolName::EditFile => self.edit_file(caller, read(arguments)?).await,
            ToolName::UploadUrl => self.upload_url(caller, read(arguments)?),
            ToolName::DeleteFile => self.delete_file(caller, read(arguments)?).await,
            ToolName::RunCell => return self.run_cell(call, read(arguments)?).await,
            ToolName::Interrupt => self.interrupt(caller, read(arguments)?).await,
            ToolName::ResetSession => self.reset_session(caller, read(arguments)?),
            ToolName::ListSessions => Ok(self.list_sessions(caller, read(arguments)?)),
            ToolName::InstallPackages => self.install_packages(caller, read(arguments)?).await,
            ToolName::ExecutePythonCode => self.execute_command(call, "python", read(arguments)?).await,
            ToolName::ExecuteBashCode => self.execute_command(call, "bash", read(arguments)?).await,
            ToolName::GetKernelStatus => self.kernel_status(caller, read(arguments)?),
            ToolName::ExecuteIpythonCell => self.execute_ipython_cell(call, read(arguments)?).await,
            ToolName::Browse => self.browse(call, read(arguments)?).await,
            ToolName::NavigateText => self.navigate_text(call, read(arguments)?).await,
            ToolName::InstallPackage => self.install_package(caller, read(arguments)?).await,
            ToolName::ListSkills => self.list_skills(caller, read(arguments)?).await,
            ToolName::GetSkillInfo => self.skill_info(caller, read(arguments)?).await,
            ToolName::GetSkillFile => self.skill_file(caller, read(arguments)?).await,
            ToolName::SearchTools => self.search_tools(caller, read(arguments)?).await,
            ToolName::GetToolSource => self.tool_source(caller, read(arguments)?).await,
            ToolName::RegisterMcpServer => self.register_mcp_server(caller, read(arguments)?).await,
            ToolName::CheckCode => self.check_code(caller, read(arguments)?).await,
            ToolName::Reset => self.reset(caller, read(arguments)?),
        };
        result.map(Into::into)
    }
}

fn read<T: DeserializeOwned + JsonSchema>(arguments: JsonObject) -> Result<T, Failure> {
    parse(arguments, Source::Json)
}

fn one_page(request: PageRequest) -> McpResult<()> {
    let refused = |_| ErrorData::invalid_params("cursor: the list is one page, so there is none: leave it out", None);
    request.and_then(|request| request.cursor).map(refused).map_or(Ok(()), Err)
}

/// Whether revisions like this one have link blocks. A client of an earlier one may refuse an answer that has some.
pub fn knows_links(version: &ProtocolVersion) -> bool {
    *version >= ProtocolVersion::V_2025_06_18
}

/// Why a request is refused whose parameters do not fit its method, or whose method is unknown.
fn unfit(method: &str, is_modern: bool) -> ErrorData {
    let why = match method {
        "tools/call" => {
            "params: a call is {\"name\": …, \"arguments\": {…}} with a string as name and an object as arguments"
        }
        "initialize" => "params: initialize needs protocolVersion, capabilities and clientInfo {name, version}",
        "tools/list"
        | "server/discover"
        | "ping"
        | "resources/list"
        | "resources/templates/list"
        | "resources/read"
        | "skills/list"
        | "skills/get"
        | "tasks/get"
        | "tasks/update"
        | "tasks/cancel"
        | "subscriptions/listen" => "params: they must be an object of this method's form",
        // Methods of the revisions before 2026-07-28.
        "resources/subscribe" | "resources/unsubscribe" if !is_modern => {
            "params: they must be {\"uri\": …} with a string"
        }
        _ => {
            let why = format!("method: there is no `{}` here", text::shown(method));
            return ErrorData::new(ErrorCode::METHOD_NOT_FOUND, why, None);
        }
    };
    ErrorData::invalid_params(why, None)
}
