//! Who calls a tool, what the client sees of the tools, and whether it has given the call up.
//!
//! What a client sees is a setting, which the query of `/mcp` overrides; a session keeps that of its first request. A
//! call is given up by a notification, or by disconnecting. rmcp signals both by one token; [`Calls`] distinguishes
//! them, since a notification also stops a detached run.

use std::sync::Arc;

use parking_lot::Mutex;
use rmcp::{
    ErrorData, RoleServer,
    model::{CallToolResponse, CallToolResult, PaginatedRequestParams, RequestId as CallId},
    service::RequestContext,
};
use tokio_util::sync::CancellationToken;

use super::{
    Downscaler,
    describe::{Group, McpOptions, ToolName},
    questions::{OpenQuestions, RepeatedCall},
};
use crate::{
    domain::{ConversationId, ConversationKey, Failure, Principal, Scope, TraceContext, id::RequestId},
    services::{
        check::Checker, files::Files, history::History, packages::Packages, runs::Runs, sessions::Sessions,
        skills::Skills, tokens::Token, tools::Tools,
    },
};

/// What the tools are made of.
#[derive(Clone)]
pub struct McpParts {
    /// Runs programs, and remembers them.
    pub runs: Runs,
    /// Runs that are no longer in memory.
    pub history: Arc<History>,
    /// Files of conversations.
    pub files: Arc<Files>,
    /// Sandboxes that keep an interpreter.
    pub sessions: Sessions,
    /// Installs packages.
    pub packages: Packages,
    pub skills: Skills,
    /// Tools of MCP servers, which programs may call.
    pub tools: Tools,
    /// Formats programs.
    pub checker: Checker,
    /// Which programs wait for a call to be repeated.
    pub questions: OpenQuestions,
    /// Makes pictures smaller that are too large for an answer.
    pub pictures: Downscaler,
    /// What is shown.
    pub options: McpOptions,
}

/// What a client sees of the tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch by itself")]
pub struct View {
    /// Names with a dot instead of an underscore.
    pub dotted: bool,
    /// Results also as `structuredContent`, with an output schema.
    pub structured: bool,
    /// Results with a `resource_link` for each file, beside its link in the text.
    pub links: bool,
    /// Results with pictures as images, beside their links in the text.
    pub images: bool,
    /// Whether each group is listed, in the order of [`Group`].
    pub groups: [bool; Group::ALL.len()],
}

impl Default for View {
    fn default() -> Self {
        Self {
            dotted: false,
            structured: false,
            links: true,
            images: true,
            groups: Group::ALL.map(|group| !matches!(group, Group::CodeRunner | Group::Ipybox | Group::Check)),
        }
    }
}

impl View {
    /// With the groups of a list such as `run,files`.
    ///
    /// # Errors
    /// The sentence for a list that is empty or names an unknown group.
    pub fn with_groups(self, list: &str) -> Result<Self, String> {
        let mut view = Self { groups: [false; Group::ALL.len()], ..self };
        for name in list.split(',').map(str::trim) {
            let Some(group) = Group::parse(name) else {
                let known = Group::ALL.map(Group::word).join(", ");
                return Err(format!("it must be a list of tool groups, comma separated, out of: {known}"));
            };
            view.groups[group as usize] = true;
        }
        Ok(view)
    }

    /// As the query of a request changes it. Unknown parameters are ignored.
    ///
    /// # Errors
    /// The sentence for a value that is not one of a parameter's.
    pub fn with_query(mut self, query: &str) -> Result<Self, String> {
        let switch = |name: &str, value: &str, off: &str, on: &str| match value {
            _ if value == off => Ok(false),
            _ if value == on => Ok(true),
            _ => Err(format!("{name}: it must be `{off}` or `{on}`")),
        };
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match name {
                "names" => self.dotted = switch(name, value, "underscore", "dotted")?,
                "structured" => self.structured = switch(name, value, "off", "on")?,
                "links" => self.links = switch(name, value, "off", "on")?,
                "images" => self.images = switch(name, value, "off", "on")?,
                "tools" => {
                    let list = value.replace("%2C", ",").replace("%2c", ",");
                    self = self.with_groups(&list).map_err(|why| format!("tools: {why}"))?;
                }
                _ => {}
            }
        }
        Ok(self)
    }

    /// CodeRunner's tools include those of skills.
    pub(super) fn lists(self, group: Group) -> bool {
        let with_coderunner = group == Group::Skills && self.groups[Group::CodeRunner as usize];
        self.groups[group as usize] || with_coderunner
    }

    /// A tool's name as this client's list has it.
    pub(super) fn name(self, tool: ToolName) -> &'static str {
        if self.dotted { tool.dotted() } else { tool.underscored() }
    }

    /// A text in which `@` stands for what the names of tools begin with.
    pub(super) fn names_in(self, text: &str) -> String {
        text.replace('@', if self.dotted { "sandbox." } else { "sandbox_" })
    }
}

/// What the transport knows of a request's client. Among the extensions of the request's head.
#[derive(Debug, Clone)]
pub struct Client {
    pub view: View,
    /// It takes one answer and no notifications before it.
    pub one_answer: bool,
    /// Ends with its session, where it has one.
    pub session: Option<CancellationToken>,
    /// That of its session, for tools that name none.
    pub conversation: Option<ConversationId>,
}

/// The caller, and the request's id.
#[derive(Debug)]
pub(super) struct Caller {
    pub principal: Principal,
    /// `None` for the user who started the process, who may do everything.
    pub token: Option<Arc<Token>>,
    pub request: RequestId,
    /// Its trace context.
    pub trace: Option<TraceContext>,
    pub view: View,
    /// Ends with the client's session, where it has one.
    pub session: Option<CancellationToken>,
    /// For tools that name none: that of the client's session, otherwise of the token.
    pub conversation: Option<ConversationId>,
}

pub(super) type Context = RequestContext<RoleServer>;
pub(super) type PageRequest = Option<PaginatedRequestParams>;
pub(super) type McpResult<T> = Result<T, ErrorData>;

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
    pub context: &'a Context,
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

/// The calls of one client that are in flight. A clone is the same calls.
#[derive(Clone, Default)]
pub(super) struct Calls(Arc<Mutex<Vec<Entry>>>);

/// A call finds its entry by the token: a client may use one request id for two calls at once.
type Entry = (CallId, Arc<CancellationToken>);

/// One call; its drop removes its entry.
pub(super) struct Call {
    calls: Calls,
    cancelled: Arc<CancellationToken>,
    left: CancellationToken,
    /// What it brings where it is repeated.
    pub(super) repeated: Option<RepeatedCall>,
    /// The client's session; one that never ends where it has none. rmcp cancels its calls only seconds after its end.
    session: CancellationToken,
}

impl Calls {
    /// Registers a call. `left` is rmcp's token of it, with the session's.
    pub(super) fn register(
        &self,
        id: CallId,
        (left, session): (CancellationToken, Option<CancellationToken>),
        repeated: Option<RepeatedCall>,
    ) -> Call {
        let (cancelled, session) = (Arc::default(), session.unwrap_or_default());
        let call = Call { calls: self.clone(), cancelled, left, repeated, session };
        self.0.lock().push((id, Arc::clone(&call.cancelled)));
        // A notification that came before the entry existed has found nothing.
        if call.left.is_cancelled() {
            call.cancelled.cancel();
        }
        call
    }

    /// The client gives up every call with this id.
    pub(super) fn cancel(&self, id: &CallId) {
        self.0.lock().iter().filter(|entry| entry.0 == *id).for_each(|entry| entry.1.cancel());
    }
}

impl Call {
    /// Waits until the run of this call is to be stopped.
    pub(super) async fn stopped(&self, detached: bool) {
        if detached { self.cancelled.cancelled().await } else { self.given_up().await }
    }

    /// Waits until the client no longer waits for this call.
    pub(super) async fn given_up(&self) {
        tokio::select! {
            () = self.left.cancelled() => {}
            () = self.cancelled.cancelled() => {}
            () = self.session.cancelled() => {}
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.calls.0.lock().retain(|entry| !Arc::ptr_eq(&entry.1, &self.cancelled));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn end_of_a_session_stops_the_run_of_its_call_unless_it_is_detached() {
        let session = CancellationToken::new();
        let tokens = (CancellationToken::new(), Some(session.clone()));
        let call = Calls::default().register(CallId::Number(1), tokens, None);
        assert!(call.stopped(false).now_or_never().is_none());
        session.cancel();
        assert!(call.stopped(false).now_or_never().is_some() && call.stopped(true).now_or_never().is_none());
    }

    #[test]
    fn end_of_a_call_keeps_the_entry_of_another_with_its_id() {
        let (calls, id) = (Calls::default(), CallId::Number(1));
        let register = || calls.register(id.clone(), (CancellationToken::new(), None), None);
        let (first, second) = (register(), register());
        drop(first);
        calls.cancel(&id);
        assert!(second.cancelled.is_cancelled());
        drop(second);
        assert!(calls.0.lock().is_empty());
    }

    #[test]
    fn cancel_reaches_every_call_with_the_id_and_no_other() {
        let calls = Calls::default();
        let [one, same, other] =
            [1, 1, 2].map(|id| calls.register(CallId::Number(id), (CancellationToken::new(), None), None));
        calls.cancel(&CallId::Number(1));
        assert_eq!([one, same, other].map(|call| call.cancelled.is_cancelled()), [true, true, false]);
    }

    #[test]
    fn query_overrides_the_settings_and_wrong_values_are_named() {
        let query = "names=dotted&structured=on&links=off&images=off&tools=files&more=1";
        let seen = View::default().with_query(query).expect("a view");
        assert_eq!(
            seen,
            View {
                dotted: true,
                structured: true,
                links: false,
                images: false,
                groups: [false, true, false, false, false, false, false, false, false]
            }
        );
        let query = "names=underscore&structured=off&links=on&images=on&tools=run%2Cfiles,session,web,skills,tools";
        assert_eq!(seen.with_query(query), Ok(View::default()));
        let wrong = [
            ("names=x", "names: "),
            ("structured=", "structured: "),
            ("links=no", "links: "),
            ("images=0", "images: "),
            ("tools=run,shell", "tools: "),
        ];
        for (query, part) in wrong {
            assert!(View::default().with_query(query).is_err_and(|why| why.starts_with(part)), "{query}");
        }
        assert!(View::default().with_groups("").is_err());
        assert_eq!(View::default().names_in("see @get_run"), "see sandbox_get_run");
    }
}
