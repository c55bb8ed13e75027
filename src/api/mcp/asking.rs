//! Questions to the person at the client, by elicitation, where the client offers it: a line that a cell asks for with
//! `input()`, and whether a call of a tool may be made.
//!
//! Belongs to the call that began the cell, in whose task it runs: the question travels on the call's stream. When the
//! call returns first, the question is withdrawn and the input ends.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, stream::BoxStream};
use rmcp::{
    RoleServer,
    model::{
        ClientResult, ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema,
        EnumSchema, ProtocolVersion, ServerRequest,
    },
    service::{PeerRequestOptions, RequestHandle},
};
use tokio::time::timeout;
use tracing::debug;

use super::{Caller, waiting::ToolContext};
use crate::{
    domain::{
        event::{Event, EventKind},
        token::Scope,
        tools::{Answered, Approval, Asked},
    },
    services::{
        runs::{Run, RunRequest},
        tools::{Approvals, ByWhom, Tools},
    },
};

/// How long a person may take for one answer. The cell's own time limit goes on meanwhile.
const ANSWER_MAX: Duration = Duration::from_mins(10);
/// The members of the forms.
const LINE: &str = "line";
const ANSWER: &str = "answer";
/// How much of a call's arguments a form shows, in characters.
const ARGUMENTS_CHARS_MAX: usize = 2000;

/// The questions of one program.
pub(super) struct Asking {
    events: BoxStream<'static, Event>,
    open: Option<RequestHandle<RoleServer>>,
}

/// What a client can be asked.
#[derive(Default)]
pub(super) struct Asks {
    /// Lines of input: the program is a cell, and its caller gave none.
    pub(super) input: bool,
    /// Whether calls of tools may be made: the caller's token may say so.
    approvals: Option<(Arc<Approvals>, ByWhom)>,
}

impl Asks {
    /// Nothing where the client shows no forms. Revision 2026-07-28 has no requests of a server, and a client without a
    /// session cannot answer one.
    pub(super) fn of(caller: &Caller, request: &RunRequest, tools: &Tools, context: ToolContext<'_>) -> Self {
        let can_be_asked = || {
            let version = context.protocol_version()?;
            let client = context.peer.peer_info()?;
            let elicitation = client.capabilities.elicitation.as_ref()?;
            let forms = elicitation.form.is_some() || elicitation.url.is_none();
            Some(forms && version.as_str() < ProtocolVersion::V_2026_07_28.as_str())
        };
        if caller.session.is_none() || can_be_asked() != Some(true) {
            return Self::default();
        }
        let input = request.session.is_some() && request.stdin.is_empty() && !request.stdin_open;
        let may = tools.is_offered(&caller.principal) && caller.check_scope(Scope::Approve).is_ok();
        let by = || ByWhom { who: caller.principal.clone(), is_operator: false, by: "client" };
        Self { input, approvals: may.then(|| (Arc::clone(tools.approvals()), by())) }
    }

    pub(super) fn any(&self) -> bool {
        self.input || self.approvals.is_some()
    }
}

impl Asking {
    /// Of this run, from its beginning.
    pub(super) fn of(run: &Run) -> Self {
        Self { events: run.events(1), open: None }
    }

    /// Passes on each question of the program, and its answer; never returns.
    pub(super) async fn serve(&mut self, run: &Run, asks: &Asks, context: ToolContext<'_>) {
        while let Some(event) = self.events.next().await {
            let (prompt, password) = match event.kind {
                EventKind::InputRequest { prompt, password } if asks.input => (prompt, password),
                EventKind::Approval(question) => {
                    if let Some((approvals, by)) = &asks.approvals
                        && let Some(answer) = self.approve(&question, context).await
                        && let Err(failure) = approvals.answer(by, question.id, answer).await
                    {
                        debug!(code = %failure.code, "an answer came too late");
                    }
                    continue;
                }
                _ => continue,
            };
            // The protocol forbids to ask for secrets in a form.
            let line = if password { None } else { self.ask(&prompt, context).await };
            let sent = match line {
                Some(line) => run.send_input(line.into(), false).await,
                None => run.send_input(Bytes::new(), true).await,
            };
            if let Err(failure) = sent {
                debug!(code = %failure.code, "an answer came too late");
            }
        }
        std::future::pending::<()>().await;
    }

    /// Withdraws an open question and ends the input.
    pub(super) async fn end(self, run: &Run, asks: &Asks) {
        if let Some(open) = self.open {
            // The client may be gone.
            drop(open.cancel(Some("the program no longer waits".to_owned())).await);
        }
        if asks.input {
            // An error says that the run is over.
            drop(run.send_input(Bytes::new(), true).await);
        }
    }

    /// The line that the person gives, with its end; nothing when they decline, or do not answer in time.
    async fn ask(&mut self, prompt: &str, context: ToolContext<'_>) -> Option<String> {
        let prompt = if prompt.trim().is_empty() { "a line of input" } else { prompt.trim() };
        let field = |field: rmcp::model::StringSchema| field.title("Input");
        let form = ElicitationSchema::builder().string_property(LINE, field).build().ok()?;
        match self.form(format!("The program in the sandbox asks: {prompt}"), form, context).await? {
            ElicitResult { action: ElicitationAction::Accept, content, .. } => {
                let given = content.unwrap_or_default();
                // One question is one line, whatever was pasted.
                Some(given[LINE].as_str().unwrap_or_default().replace(['\r', '\n'], " ") + "\n")
            }
            _ => None,
        }
    }

    /// What the person says about a call; nothing when they dismiss the question, which others may answer.
    async fn approve(&mut self, question: &Approval, context: ToolContext<'_>) -> Option<Answered> {
        let Asked { server, tool, arguments, .. } = &question.asked;
        let shown: String = arguments.chars().take(ARGUMENTS_CHARS_MAX).collect();
        let more = if shown.len() < arguments.len() { "…" } else { "" };
        let message = format!(
            "A program wants to call the tool {server}/{} with {}{more}",
            tool.escape_debug(),
            shown.escape_debug().to_string().replace("\\\"", "\"")
        );
        let words =
            [Answered::Once, Answered::Session, Answered::Always, Answered::No].map(|one| one.word().to_owned());
        let choice = EnumSchema::builder(words.to_vec()).build();
        let form = ElicitationSchema::builder().required_enum_schema(ANSWER, choice).build().ok()?;
        match self.form(message, form, context).await? {
            ElicitResult { action: ElicitationAction::Accept, content, .. } => {
                Answered::parse(content.unwrap_or_default()[ANSWER].as_str()?)
            }
            ElicitResult { action: ElicitationAction::Decline, .. } => Some(Answered::No),
            ElicitResult { .. } => None,
        }
    }

    /// Asks by a form; nothing when there is no answer in time.
    async fn form(
        &mut self,
        message: String,
        requested_schema: ElicitationSchema,
        context: ToolContext<'_>,
    ) -> Option<ElicitResult> {
        let form = ElicitRequestParams::FormElicitationParams { meta: None, message, requested_schema };
        let request = ServerRequest::ElicitRequest(ElicitRequest::new(form));
        let sent = context.peer.send_cancellable_request(request, PeerRequestOptions::no_options()).await;
        let open = self.open.insert(sent.ok()?);
        let Ok(answer) = timeout(ANSWER_MAX, &mut open.rx).await else {
            let open = self.open.take()?;
            drop(open.cancel(Some("no answer came in time".to_owned())).await);
            return None;
        };
        self.open = None;
        match answer {
            Ok(Ok(ClientResult::ElicitResult(answer))) => Some(answer),
            _ => None,
        }
    }
}
