//! The program of the isolation check: a run like every other, in a conversation that is deleted afterwards.

use async_trait::async_trait;

use super::{RunRequest, Runs};
use crate::{
    domain::{
        error::{Code, Failure},
        id::{ConversationId, Language},
        outcome::Ended,
        owner::{ConversationKey, Principal},
    },
    services::isolation_check::ProgramRunner,
};

#[async_trait]
impl ProgramRunner for Runs {
    async fn run_to_end(&self, language: &Language, program: String) -> Result<String, Failure> {
        let conversation = ConversationKey::new(Principal::self_test(), ConversationId::fresh());
        let request = RunRequest {
            throw_away: true,
            detach: Some(false),
            ..RunRequest::new(conversation, language.clone(), program.into())
        };
        let report = self.begin(request)?.finished().await?;
        let code = match report.outcome.ended {
            Ended::Exited { code: 0 } => return Ok(report.stdout.text.clone()),
            Ended::Exited { .. } | Ended::Signaled { .. } => Code::RunnerFailed,
            _ => Code::QueueTimeout,
        };
        Err(Failure::new(code, format!("its program did not run to its end: {}", report.outcome.sentence())))
    }
}
