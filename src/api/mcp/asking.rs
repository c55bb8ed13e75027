//! A line that a cell asks for with `input()`, from the person at the client: by elicitation, where the client offers
//! it.
//!
//! Belongs to the call that began the cell, in whose task it runs: the question travels on the call's stream. When the
//! call returns first, the question is withdrawn and the input ends.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream::BoxStream};
use rmcp::{
    RoleServer,
    model::{
        ClientResult, ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema,
        ProtocolVersion, ServerRequest,
    },
    service::{PeerRequestOptions, RequestHandle},
};
use tokio::time::timeout;
use tracing::debug;

use super::{Caller, waiting::ToolContext};
use crate::{
    domain::event::{Event, EventKind},
    services::runs::{Run, RunRequest},
};

/// How long a person may take for one answer. The cell's own time limit goes on meanwhile.
const ANSWER_MAX: Duration = Duration::from_mins(10);
/// The member of the form.
const LINE: &str = "line";

/// The questions of one cell.
pub(super) struct Asking {
    events: BoxStream<'static, Event>,
    open: Option<RequestHandle<RoleServer>>,
}

/// Whether questions of this program can be passed on: it is a cell, its caller gave no input, and the client shows
/// forms. Revision 2026-07-28 has no requests of a server, and a client without a session cannot answer one.
pub(super) fn is_offered(caller: &Caller, request: &RunRequest, context: ToolContext<'_>) -> bool {
    let can_be_asked = || {
        let version = context.protocol_version()?;
        let client = context.peer.peer_info()?;
        let elicitation = client.capabilities.elicitation.as_ref()?;
        let forms = elicitation.form.is_some() || elicitation.url.is_none();
        Some(forms && version.as_str() < ProtocolVersion::V_2026_07_28.as_str())
    };
    let takes_more = request.session.is_some() && request.stdin.is_empty() && !request.stdin_open;
    takes_more && caller.session.is_some() && can_be_asked() == Some(true)
}

impl Asking {
    /// Of this run, from its beginning.
    pub(super) fn of(run: &Run) -> Self {
        Self { events: run.events(1), open: None }
    }

    /// Passes on each question of the cell, and its answer; never returns.
    pub(super) async fn serve(&mut self, run: &Run, context: ToolContext<'_>) {
        while let Some(event) = self.events.next().await {
            let EventKind::InputRequest { prompt, password } = event.kind else { continue };
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
    pub(super) async fn end(self, run: &Run) {
        if let Some(open) = self.open {
            // The client may be gone.
            drop(open.cancel(Some("the program no longer waits".to_owned())).await);
        }
        // An error says that the run is over.
        drop(run.send_input(Bytes::new(), true).await);
    }

    /// The line that the person gives, with its end; nothing when they decline, or do not answer in time.
    async fn ask(&mut self, prompt: &str, context: ToolContext<'_>) -> Option<String> {
        let prompt = if prompt.trim().is_empty() { "a line of input" } else { prompt.trim() };
        let field = |field: rmcp::model::StringSchema| field.title("Input");
        let requested_schema = ElicitationSchema::builder().string_property(LINE, field).build().ok()?;
        let message = format!("The program in the sandbox asks: {prompt}");
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
            Ok(Ok(ClientResult::ElicitResult(ElicitResult { action: ElicitationAction::Accept, content, .. }))) => {
                let given = content.unwrap_or_default();
                // One question is one line, whatever was pasted.
                Some(given[LINE].as_str().unwrap_or_default().replace(['\r', '\n'], " ") + "\n")
            }
            _ => None,
        }
    }
}
