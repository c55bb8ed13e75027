//! Questions to the person at the client, by elicitation, where the client offers it: a line that a cell asks for with
//! `input()`, and whether a call of a tool may be made.
//!
//! Belongs to the call that began the cell, in whose task it runs. Before revision 2026-07-28 a question travels on the
//! call's stream; when the call returns first, the question is withdrawn and the input ends. From that revision on
//! servers send no requests: the call is answered with the question, the program waits, and the client repeats the call
//! with the answer and the state that names the run ([`RepeatedCall`]). A request for a line that another client
//! answered is withdrawn or not asked, and an answer that comes all the same is dropped: it would be that to the next
//! request.
//!
//! The returned state is untrusted. The run is looked up among those of the caller, and an answer counts only if its
//! token may give it, so a client gains nothing by changing the state.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream::BoxStream};
use parking_lot::{Mutex, MutexGuard};
use rmcp::{
    RoleServer,
    model::{
        CallToolRequestParams, ClientResult, ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction,
        ElicitationSchema, EnumSchema, InputRequest, InputRequiredResult, InputResponses, ServerRequest,
    },
    service::{PeerRequestOptions, RequestHandle},
};
use tokio::time::timeout;
use tracing::debug;

use super::{Caller, caller::Context, progress::SEND_MAX};
use crate::{
    domain::{
        Code, Event, EventKind, Failure, Principal, RunId, Scope,
        tools::{Answered, Approval, ApprovalId, ProposedCall},
    },
    services::{
        runs::{Run, RunRequest, RunState, Runs},
        tools::{Approvals, Approver, Tools},
    },
};

/// How long a person may take for one answer. The cell's own time limit goes on meanwhile.
const ANSWER_MAX: Duration = Duration::from_mins(10);
/// The question's name in the answer to a call: there is one at a time.
const KEY: &str = "question";
/// The member of the form for a line of input. It also stands in the state where the question is such a line.
const LINE: &str = "line";
/// The member of the form about a call.
const ANSWER: &str = "answer";
/// How much of a call's arguments a form shows, in characters.
const ARGUMENTS_CHARS_MAX: usize = 2000;

/// The questions of one program.
pub(super) struct Questions {
    events: BoxStream<'static, Event>,
    open: Option<RequestHandle<RoleServer>>,
}

/// What a program waits for.
pub(super) enum Question {
    /// A line of input, after this prompt.
    Line(String),
    Approval(Box<Approval>),
}

impl Question {
    /// `None` for a line of input.
    fn approval(&self) -> Option<ApprovalId> {
        match self {
            Self::Line(_) => None,
            Self::Approval(question) => Some(question.id),
        }
    }

    fn form(&self) -> Option<ElicitRequest> {
        match self {
            Self::Line(prompt) => line_form(prompt),
            Self::Approval(question) => approval_form(question),
        }
    }
}

/// What a client can be asked.
#[derive(Default)]
pub(super) struct ClientAbilities {
    /// Lines of input: the program is a cell, and its caller gave none.
    pub(super) input: bool,
    /// Whether calls of tools may be made: the caller's token may say so.
    approvals: Option<(Arc<Approvals>, Approver)>,
    /// By an answer to the call, which is repeated.
    pub(super) by_repeating: bool,
}

impl ClientAbilities {
    /// Nothing where the client shows no forms. Before revision 2026-07-28 a client without a session cannot answer.
    pub(super) fn of(caller: &Caller, request: &RunRequest, tools: &Tools, context: &Context) -> Self {
        let version = context.protocol_version();
        let by_repeating = version.is_some_and(|version| !version.has_initialize());
        let shows_forms = || {
            let elicitation = context.client_capabilities()?.elicitation?;
            Some(elicitation.form.is_some() || elicitation.url.is_none())
        };
        if !by_repeating && caller.session.is_none() || shows_forms() != Some(true) {
            return Self::default();
        }
        let input = request.session.is_some() && request.stdin.is_empty() && !request.stdin_open;
        let may = tools.is_offered(&caller.principal) && caller.check_scope(Scope::Approve).is_ok();
        let by = || Approver { who: caller.principal.clone(), is_operator: false, by: "client" };
        Self { input, approvals: may.then(|| (Arc::clone(tools.approvals()), by())), by_repeating }
    }

    /// Passes on what a form was filled in with: what a person says about a call, otherwise a line of input, which ends
    /// where there is none. A question about a call that is dismissed may be answered by others.
    async fn pass_on(&self, run: &Run, approval: Option<ApprovalId>, filled: Option<ElicitResult>) {
        match (approval, &self.approvals) {
            (Some(question), Some((approvals, by))) => {
                if let Some(answer) = filled.and_then(answer_of)
                    && let Err(failure) = approvals.answer(by, question, answer).await
                {
                    debug!(code = %failure.code, "an answer came too late");
                }
            }
            (None, _) if self.input => give(run, filled.and_then(line_of)).await,
            _ => {}
        }
    }

    pub(super) fn any(&self) -> bool {
        self.input || self.approvals.is_some()
    }
}

impl Questions {
    /// Of this run, from this event on.
    pub(super) fn of(run: &Run, first: u64) -> Self {
        Self { events: run.events(first), open: None }
    }

    /// Passes on each question of the program, and its answer. Where the client is asked by answering its call, returns
    /// the first question and the number of its event; otherwise never.
    pub(super) async fn serve(&mut self, run: &Run, asks: &ClientAbilities, context: &Context) -> (u64, Question) {
        while let Some(Event { number, kind, .. }) = self.events.next().await {
            let question = match kind {
                EventKind::InputRequest { .. } if is_answered(run, number) => continue,
                // The protocol forbids to ask for secrets in a form.
                EventKind::InputRequest { password: true, .. } if asks.input => {
                    give(run, None).await;
                    continue;
                }
                EventKind::InputRequest { prompt, .. } if asks.input => Question::Line(prompt),
                EventKind::Approval(question) if asks.approvals.is_some() => Question::Approval(question),
                _ => continue,
            };
            if asks.by_repeating {
                return (number, question);
            }
            let filled = tokio::select! {
                biased;
                () = run.answered(number), if question.approval().is_none() => None,
                filled = self.ask(&question, context) => Some(filled),
            };
            match filled {
                Some(filled) => asks.pass_on(run, question.approval(), filled).await,
                None => self.withdraw("it was answered elsewhere").await,
            }
        }
        std::future::pending().await
    }

    /// Withdraws an open question and ends the input.
    pub(super) async fn end(mut self, run: &Run, asks: &ClientAbilities) {
        self.withdraw("the program no longer waits").await;
        if asks.input {
            // An error says that the run is over.
            drop(run.send_input(Bytes::new(), true).await);
        }
    }

    async fn withdraw(&mut self, why: &str) {
        if let Some(open) = self.open.take() {
            // The client may be gone, or take no message.
            drop(timeout(SEND_MAX, open.cancel(Some(why.to_owned()))).await);
        }
    }

    /// Asks by a form; nothing when there is no answer in time.
    async fn ask(&mut self, question: &Question, context: &Context) -> Option<ElicitResult> {
        let request = ServerRequest::ElicitRequest(question.form()?);
        let sent = context.peer.send_cancellable_request(request, PeerRequestOptions::no_options()).await;
        let open = self.open.insert(sent.ok()?);
        let Ok(answer) = timeout(ANSWER_MAX, &mut open.rx).await else {
            self.withdraw("no answer came in time").await;
            return None;
        };
        self.open = None;
        match answer {
            Ok(Ok(ClientResult::ElicitResult(answer))) => Some(answer),
            _ => None,
        }
    }
}

fn is_answered(run: &Run, request: u64) -> bool {
    run.answered(request).now_or_never().is_some()
}

/// Gives a program a line of input; without one, or with one that is too long, its input ends.
async fn give(run: &Run, line: Option<String>) {
    let sent = match line {
        Some(line) => run.send_input(line.into(), false).await,
        None => run.send_input(Bytes::new(), true).await,
    };
    match sent {
        // Nothing of it was given, and the program is not asked for again.
        Err(failure) if failure.code == Code::TooLarge => drop(run.send_input(Bytes::new(), true).await),
        Err(failure) => debug!(code = %failure.code, "an answer came too late"),
        Ok(()) => {}
    }
}

/// The form for a line of input.
fn line_form(prompt: &str) -> Option<ElicitRequest> {
    let prompt = if prompt.trim().is_empty() { "a line of input" } else { prompt.trim() };
    let field = |field: rmcp::model::StringSchema| field.title("Input");
    let form = ElicitationSchema::builder().string_property(LINE, field).build().ok()?;
    Some(form_of(format!("The program in the sandbox asks: {prompt}"), form))
}

/// The form that asks whether a call may be made.
fn approval_form(question: &Approval) -> Option<ElicitRequest> {
    let ProposedCall { server, tool, arguments, .. } = &question.call;
    let shown: String = arguments.chars().take(ARGUMENTS_CHARS_MAX).collect();
    let more = if shown.len() < arguments.len() { "…" } else { "" };
    let message = format!(
        "A program wants to call the tool {server}/{} with {}{more}",
        tool.escape_debug(),
        shown.escape_debug().to_string().replace("\\\"", "\"")
    );
    let words = [Answered::Once, Answered::Session, Answered::Always, Answered::No].map(|one| one.word().to_owned());
    let choice = EnumSchema::builder(words.to_vec()).build();
    Some(form_of(message, ElicitationSchema::builder().required_enum_schema(ANSWER, choice).build().ok()?))
}

fn form_of(message: String, requested_schema: ElicitationSchema) -> ElicitRequest {
    ElicitRequest::new(ElicitRequestParams::FormElicitationParams { meta: None, message, requested_schema })
}

/// The line that a form was filled in with; nothing when the person declined.
fn line_of(filled: ElicitResult) -> Option<String> {
    let ElicitResult { action: ElicitationAction::Accept, content, .. } = filled else { return None };
    // One question is one line, whatever was pasted.
    Some(content.unwrap_or_default()[LINE].as_str().unwrap_or_default().replace(['\r', '\n'], " ") + "\n")
}

/// What a form says about a call; nothing when it was dismissed.
fn answer_of(filled: ElicitResult) -> Option<Answered> {
    match filled.action {
        ElicitationAction::Accept => Answered::parse(filled.content.unwrap_or_default()[ANSWER].as_str()?),
        ElicitationAction::Decline => Some(Answered::No),
        _ => None,
    }
}

/// What a repeated call brings.
pub(super) struct RepeatedCall {
    pub(super) run: RunId,
    /// The event that was the question.
    event: u64,
    /// `None`: a line of input.
    approval: Option<ApprovalId>,
    answers: InputResponses,
}

impl RepeatedCall {
    /// `None` for a call that is made the first time.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::domain::error::Code::InvalidArgument) for a state that is none of ours.
    pub(super) fn of(request: &CallToolRequestParams) -> Result<Option<Self>, Failure> {
        let Some(state) = &request.request_state else { return Ok(None) };
        let parsed = || {
            let mut parts = state.split(' ');
            let (run, event) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
            let approval = match parts.next()? {
                LINE => None,
                id => Some(id.parse().ok()?),
            };
            parts.next().is_none().then_some((run, event, approval))
        };
        let (run, event, approval) =
            parsed().ok_or_else(|| Failure::argument("requestState", "it is not what the server answered"))?;
        Ok(Some(Self { run, event, approval, answers: request.input_responses.clone().unwrap_or_default() }))
    }

    /// Gives the program its answer, unless it has one. The first event to look at for the next question: the same one
    /// where there is no answer.
    pub(super) async fn deliver(&self, run: &Run, asks: &ClientAbilities) -> u64 {
        let filled = self.answers.get(KEY).and_then(|value| serde_json::from_value(value.clone()).ok());
        if filled.is_none() {
            return self.event;
        }
        if self.approval.is_some() || !is_answered(run, self.event) {
            asks.pass_on(run, self.approval, filled).await;
        }
        self.event.saturating_add(1)
    }
}

/// Calls that were answered with a question and are not repeated yet, by their runs. A clone is the same.
#[derive(Clone, Default)]
pub struct OpenQuestions(Arc<Mutex<HashMap<RunId, Principal>>>);

impl OpenQuestions {
    /// Whether a program of this caller waits for a repeated call, which is no new run.
    pub fn has_any_of(&self, runs: &Runs, who: &Principal) -> bool {
        self.under_way(runs).values().any(|asked| asked == who)
    }

    pub(super) fn add(&self, runs: &Runs, who: &Principal, run: RunId) {
        self.under_way(runs).insert(run, who.clone());
    }

    pub(super) fn remove(&self, run: RunId) {
        self.0.lock().remove(&run);
    }

    /// Those whose programs still run. Others are removed: their clients may never come back.
    fn under_way(&self, runs: &Runs) -> MutexGuard<'_, HashMap<RunId, Principal>> {
        let mut open = self.0.lock();
        open.retain(|run, who| runs.get(who, *run).is_ok_and(|run| run.view().state != RunState::Finished));
        open
    }
}

/// The answer to a call whose program waits for a person.
pub(super) fn required(run: RunId, event: u64, question: &Question) -> Option<InputRequiredResult> {
    let about = question.approval().map_or_else(|| LINE.to_owned(), |id| id.to_string());
    let questions = BTreeMap::from([(KEY.to_owned(), InputRequest::Elicitation(question.form()?))]);
    Some(InputRequiredResult::new(Some(questions), Some(format!("{run} {event} {about}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_ours_or_refused() {
        let call = |state: &str| {
            let mut request = CallToolRequestParams::new("sandbox_run_code");
            request.request_state = Some(state.to_owned());
            RepeatedCall::of(&request)
        };
        let (run, id) = (RunId::new(), ApprovalId::new());
        let of = |state: &str| call(state).expect("a state").expect("there is one");
        assert_eq!((of(&format!("{run} 5 line")).run, of(&format!("{run} 5 {id}")).approval), (run, Some(id)));
        for wrong in [
            "",
            " ",
            "x 1 line",
            &format!("{run}"),
            &format!("{run} 1"),
            &format!("{run} 1 x"),
            &format!("{run} -1 line"),
            &format!("{run} 1 line more"),
            &"9".repeat(10_000),
        ] {
            assert!(call(wrong).is_err(), "{wrong}");
        }
        assert!(RepeatedCall::of(&CallToolRequestParams::new("x")).expect("none").is_none());
    }
}
