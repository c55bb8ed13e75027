//! Tools of MCP servers, and questions about their calls.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{answers, moment, parse::item_limit};
use crate::{
    domain::{
        Failure,
        text::ms,
        tools::{Answered, Approval, ServerText, ToolServer, ToolUse},
    },
    services::tools::{Directory, ModuleLanguage, ServerState, Source},
};

/// Tools that are found by default, and at most.
const FOUND: u64 = 10;
const FOUND_MAX: u64 = 50;

answers! {
    /// A finished call of a tool by a program.
    pub struct ToolCall(used: &ToolUse) {
        #[schema(example = "github")]
        server: String = used.server.clone(),
        tool: String = used.tool.clone(),
        /// `answered`, `failed`, `denied`, `refused`, `unavailable` or `cancelled`.
        #[schema(example = "answered")]
        ended: &'static str = used.end.word(),
        /// Why it was not answered.
        message: Option<String> = used.why.clone(),
        /// SHA-256 of the arguments as JSON with sorted members, in hexadecimal digits.
        arguments_sha256: String = used.arguments_sha256.clone(),
        ms: u64 = ms(used.took),
    }

    /// A question whether a program may make a call of a tool, and its answer.
    pub struct ApprovalResult(question: &Approval) {
        id: String = question.id.to_string(),
        owner: String = question.call.conversation.owner.name().to_owned(),
        conversation_id: String = question.call.conversation.id.to_string(),
        server: String = question.call.server.clone(),
        tool: String = question.call.tool.clone(),
        /// The arguments that will be sent, as JSON with sorted members. Parts of them may be untrusted.
        arguments: String = question.call.arguments.clone(),
        #[schema(format = DateTime)]
        asked_at: String = moment(question.asked_unix_ms),
        /// When the question, or the answer that was given, expires.
        #[schema(format = DateTime)]
        expires_at: String = moment(question.expires_unix_ms),
        answer: Option<Answered> = question.answered,
        /// Who answered, and how.
        answered_by: Option<String> = question.answered_by.clone(),
    }

    /// Questions, newest first.
    pub struct ApprovalList(questions: &[Approval]) {
        approvals: Vec<ApprovalResult> = questions.iter().map(Into::into).collect(),
    }

    /// The module that a program imports for a tool.
    pub struct ToolSource(source: Source) {
        source: String = source.types.unwrap_or(source.text),
    }

    /// A tool server, as an operator sees it.
    pub struct ToolServerResult((servers, server): (&Directory, &ToolServer)) {
        #[schema(example = "github")]
        name: String = server.name.to_string(),
        /// Whether it comes from the server's settings, so that it cannot be changed here.
        is_configured: bool = servers.is_configured(server.name.as_str()),
        /// Its definition, without the values of headers and variables.
        server: ServerText = without_values(server.text.clone()),
    }

    pub struct ToolServerList(servers: &Directory) {
        servers: Vec<ToolServerResult> = servers.all().iter().map(|live| (servers, &*live.server).into()).collect(),
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ToolServerStates {
    pub servers: Vec<ServerState>,
}

/// The answer to a question.
#[derive(Debug, Deserialize, JsonSchema, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AnswerBody {
    /// `once`: this call. `session`: this tool in this conversation, for an hour. `always`: this tool, until its
    /// definition changes or the answer is deleted. `no`: the call is not made.
    pub answer: Answered,
}

/// How many tools are to be found.
///
/// # Errors
/// As [`item_limit`].
pub fn found_limit(wanted: Option<u64>) -> Result<usize, Failure> {
    item_limit(wanted, FOUND, FOUND_MAX)
}

/// A search for tools.
#[derive(Debug, Deserialize, JsonSchema, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct SearchTools {
    /// What the tool does, such as `list issues`; empty lists all.
    #[serde(default)]
    #[param(max_length = 1000)]
    pub query: String,
    /// Maximum, 1 to 50; default 10.
    #[param(minimum = 1, maximum = 50)]
    pub limit: Option<u64>,
}

/// The tool whose module is requested.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetToolSource {
    pub server: String,
    pub tool: String,
    /// `python` (default) or `typescript`.
    pub language: Option<ModuleLanguage>,
}

/// A tool server, as an operator sends it.
#[derive(Debug, Deserialize, JsonSchema, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolServerBody {
    pub server: ServerText,
    /// The value of `{secret}` in its headers and variables. It is never shown again. When absent, the stored secret is
    /// kept unless the address changes.
    #[schema(max_length = 8192)]
    pub secret: Option<String>,
}

fn without_values(mut server: ServerText) -> ServerText {
    for value in server.headers.values_mut().chain(server.env.values_mut()) {
        "…".clone_into(value);
    }
    server
}

/// Arguments of ipybox's tool.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RegisterMcpServer {
    /// The name that programs import its tools by: `mcptools.<name>`.
    pub server_name: String,
    /// `{"url": …, "headers": {…}}`, or `{"command": …, "args": […], "env": {…}}`, which runs in a sandbox.
    pub server_params: ServerParams,
}

/// How ipybox names a server.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerParams {
    /// Of an MCP server over Streamable HTTP.
    pub url: Option<String>,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// `streamable_http`, or nothing.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Runs in a sandbox of its own: `npx`, `node` or `npm` in JavaScript's image, others in Python's.
    pub command: Option<String>,
    #[serde(default)]
    pub args: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

impl ServerParams {
    /// For the programs of one owner.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::domain::error::Code::InvalidArgument) for what has neither an address nor a command.
    pub fn server(self, owner: &str) -> Result<ServerText, Failure> {
        let owners = vec![owner.to_owned()];
        if let Some(program) = self.command.filter(|_| self.url.is_none()) {
            let image = if matches!(program.as_str(), "npx" | "node" | "npm") { "javascript" } else { "python" };
            let command = std::iter::once(program).chain(self.args).collect();
            return Ok(ServerText { image: image.to_owned(), command, env: self.env, owners, ..ServerText::default() });
        }
        if self.kind.as_deref().is_some_and(|kind| !matches!(kind, "streamable_http" | "http")) {
            return Err(Failure::argument("server_params", "`type` must be streamable_http"));
        }
        let url =
            self.url.ok_or_else(|| Failure::argument("server_params", "give the `url` of a server, or a `command`"))?;
        Ok(ServerText { url, headers: self.headers, owners, ..ServerText::default() })
    }
}
