//! Who calls a tool, and what the request says about the client.

use std::sync::Arc;

use rmcp::{
    ErrorData, RoleServer,
    model::{CallToolResponse, CallToolResult, PaginatedRequestParams},
    service::RequestContext,
};
use tokio_util::sync::CancellationToken;

use super::{cancellation::Call, describe::ToolName, view::View};
use crate::{
    domain::{
        error::Failure,
        id::{ConversationId, RequestId},
        owner::{ConversationKey, Principal},
        token::Scope,
        trace::TraceContext,
    },
    services::tokens::Token,
};

/// The caller, and the request's id.
#[derive(Debug)]
pub(super) struct Caller {
    pub principal: Principal,
    /// `None` for the user who started the process, who may do everything.
    pub token: Option<Arc<Token>>,
    pub request: RequestId,
    /// Its place in a trace.
    pub trace: Option<TraceContext>,
    pub view: View,
    /// Ends with the client's session, where it has one.
    pub session: Option<CancellationToken>,
    /// For tools that name none: that of the client's session, otherwise of the owner.
    pub conversation: Option<ConversationId>,
}

pub(super) type Context = RequestContext<RoleServer>;
pub(super) type PageRequest = Option<PaginatedRequestParams>;
pub(super) type McpResult<T> = Result<T, ErrorData>;

/// The call without its arguments.
pub(super) type ToolContext<'a> = &'a Context;

/// The answer of a tool, or a failure of ours. A program that fails is an answer.
pub(super) type ToolResult<T = CallToolResult> = Result<T, Failure>;

/// The same of a tool whose run may become a task or may ask for input.
pub(super) type ToolResponse = ToolResult<CallToolResponse>;

/// One call of a tool.
#[derive(Clone, Copy)]
pub(super) struct ToolCall<'a> {
    pub caller: &'a Caller,
    /// Whether the client has given it up.
    pub entry: &'a Call,
    pub context: ToolContext<'a>,
}

impl Caller {
    /// # Errors
    /// [`Code::InsufficientScope`](crate::domain::error::Code::InsufficientScope).
    pub fn check_scope(&self, scope: Scope) -> Result<(), Failure> {
        self.token.as_ref().map_or(Ok(()), |token| token.check_scope(scope))
    }

    pub fn key(&self, id: ConversationId) -> ConversationKey {
        ConversationKey::new(self.principal.clone(), id)
    }

    /// Whether the caller is pointed to a tool: its list has the tool's group, or there are no routes to name instead,
    /// as over standard streams. Every tool can be called, listed or not.
    pub fn has(&self, tool: ToolName) -> bool {
        self.token.is_none() || self.view.lists(tool.group())
    }

    /// A failure in the words of this surface. A tool that the caller's list has not is not named.
    pub fn sentence(&self, failure: &Failure) -> String {
        let is_listed = |tool: ToolName| self.view.lists(tool.group()) && self.check_scope(tool.scope()).is_ok();
        if failure.operation.is_some_and(|operation| !is_listed(operation.into())) {
            return failure.message.clone();
        }
        failure.sentence(|operation| self.tool(operation.into()))
    }

    /// A tool's name as the caller's list has it.
    pub fn tool(&self, tool: ToolName) -> &'static str {
        self.view.name(tool)
    }
}
