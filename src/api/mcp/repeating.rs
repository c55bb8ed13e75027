//! Questions to the person at a client of revision 2026-07-28, in which servers send no requests: the call is answered
//! with the question, the program waits, and the client repeats the call with the answer and the state that names the
//! run.
//!
//! The returned state is untrusted. The run is looked up among those of the caller, and an answer counts only if its
//! token may give it, so a client gains nothing by changing the state.

use std::collections::BTreeMap;

use rmcp::model::{CallToolRequestParams, InputRequest, InputRequiredResult, InputResponses};

use super::questions::{ClientAbilities, Question, answer_of, approval_form, give, line_form, line_of};
use crate::{
    domain::{error::Failure, id::RunId, tools::ApprovalId},
    services::runs::Run,
};

/// The question's name in the answer to a call: there is one at a time.
const KEY: &str = "question";
/// Stands in the state where the question is a line of input.
const LINE: &str = "line";

/// What a repeated call brings.
pub(super) struct Returned {
    pub(super) run: RunId,
    /// The event that was the question.
    event: u64,
    /// `None`: a line of input.
    approval: Option<ApprovalId>,
    answers: InputResponses,
}

impl Returned {
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

    /// Gives the program its answer. The first event to look at for the next question: the same one where there is no
    /// answer.
    pub(super) async fn deliver(&self, run: &Run, asks: &ClientAbilities) -> u64 {
        let filled = self.answers.get(KEY).and_then(|value| serde_json::from_value(value.clone()).ok());
        let Some(filled) = filled else { return self.event };
        match self.approval {
            Some(question) => {
                if let Some(answer) = answer_of(filled) {
                    asks.answer(question, answer).await;
                }
            }
            None if asks.input => give(run, line_of(filled)).await,
            None => {}
        }
        self.event.saturating_add(1)
    }
}

/// The answer to a call whose program waits for a person.
pub(super) fn required(run: RunId, event: u64, question: &Question) -> Option<InputRequiredResult> {
    let (form, about) = match question {
        Question::Line(prompt) => (line_form(prompt)?, LINE.to_owned()),
        Question::Approval(approval) => (approval_form(approval)?, approval.id.to_string()),
    };
    let questions = BTreeMap::from([(KEY.to_owned(), InputRequest::Elicitation(form))]);
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
            Returned::of(&request)
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
        assert!(Returned::of(&CallToolRequestParams::new("x")).expect("none").is_none());
    }
}
