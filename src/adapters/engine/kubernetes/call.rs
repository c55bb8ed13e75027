//! One call of the API server: its time limit and the mapping of its errors. Decides on status codes and reasons, never
//! on the text of a message; the text is passed on for the operator.

use std::{future::Future, time::Duration};

use kube::Error;
use tokio::time::timeout;

use crate::ports::engine::EngineError;

/// Waits for a call, at most `limit`.
pub(super) async fn within<T>(
    act: &'static str,
    limit: Duration,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, EngineError> {
    match timeout(limit, call).await {
        Ok(answer) => answer.map_err(|error| map_error(act, error)),
        Err(_) => Err(EngineError::Timeout { act, limit }),
    }
}

/// The status code of an answer that was a refusal.
pub(super) fn status(error: &EngineError) -> Option<u16> {
    let EngineError::Refused { source, .. } = error else { return None };
    source.downcast_ref::<Refusal>().map(|refusal| refusal.code)
}

/// Whether the answer was a refusal for this reason, a word of the API.
pub(super) fn is_for(error: &EngineError, reason: &str) -> bool {
    let EngineError::Refused { source, .. } = error else { return false };
    source.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.reason == reason)
}

/// What the API server answered, with what the operator can do.
#[derive(Debug, thiserror::Error)]
#[error("the API server answered {code} {reason}: {message}{hint}")]
pub(super) struct Refusal {
    pub code: u16,
    reason: String,
    message: String,
    hint: &'static str,
}

pub(super) fn map_error(act: &'static str, error: Error) -> EngineError {
    match error {
        // 500 is also what it answers while its store elects a leader, and where it does not reach the node of a pod.
        Error::Api(status) if matches!(status.code, 408 | 429 | 500 | 502..=504) => {
            EngineError::unavailable(act, Error::Api(status))
        }
        Error::Api(status) => {
            let hint = hint(status.code);
            let refusal = Refusal { code: status.code, reason: status.reason, message: status.message, hint };
            EngineError::refused(act, refusal)
        }
        Error::HyperError(_) | Error::Service(_) | Error::ReadEvents(_) => EngineError::unavailable(act, error),
        other => EngineError::refused(act, other),
    }
}

/// A missing right, a quota, a runtime class and Pod Security are all 403 with the same reason.
fn hint(code: u16) -> &'static str {
    match code {
        401 => " (the token or certificate of the server is not valid any more)",
        403 => {
            " (the Role of the server must allow what docs/kubernetes.md lists; otherwise raise the ResourceQuota, or \
             make the namespace allow such pods)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn answered(code: u16) -> EngineError {
        let status = Status { code, reason: "Forbidden".to_owned(), message: "no".to_owned(), ..Status::default() };
        map_error("create", Error::Api(status.boxed()))
    }

    #[test]
    fn refused_keeps_the_status_code_and_says_what_to_do() {
        assert_eq!(status(&answered(409)), Some(409));
        assert!(matches!(answered(503), EngineError::Unavailable { act: "create", .. }));
        for passing in [408, 429, 500, 502, 504] {
            assert!(matches!(answered(passing), EngineError::Unavailable { .. }), "{passing}");
        }
        let EngineError::Refused { source, .. } = answered(403) else { panic!("not refused") };
        let text = source.to_string();
        assert!(text.contains("403 Forbidden: no") && text.contains("ResourceQuota"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn within_times_out_when_the_call_hangs() {
        let limit = Duration::from_secs(5);
        let hung = within::<()>("create", limit, std::future::pending()).await;
        assert!(matches!(hung, Err(EngineError::Timeout { act: "create", limit: l }) if l == limit));
    }
}
