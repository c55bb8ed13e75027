//! One call of the engine: its time limit and what its failure means. Decides on types and status codes, never on the
//! text of a message.

use std::{future::Future, time::Duration};

use bollard::errors::Error;
use tokio::time::timeout;

use crate::ports::engine::EngineError;

/// Waits for a call, at most `limit`.
pub(super) async fn within<T>(
    act: &'static str,
    limit: Duration,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, EngineError> {
    match timeout(limit, call).await {
        Ok(answer) => answer.map_err(|error| meaning(act, limit, error)),
        Err(_) => Err(EngineError::Timeout { act, limit }),
    }
}

/// The status code of an answer that was a refusal.
pub(super) fn status(error: &EngineError) -> Option<u16> {
    let (EngineError::Refused { source, .. } | EngineError::Unavailable { source, .. }) = error else { return None };
    match source.downcast_ref::<Error>()? {
        Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// Whether there was an answer in words that the client does not know.
pub(super) fn is_unreadable(error: &EngineError) -> bool {
    let EngineError::Refused { source, .. } = error else { return false };
    matches!(source.downcast_ref::<Error>(), Some(Error::JsonDataError { .. }))
}

pub(super) fn meaning(act: &'static str, limit: Duration, error: Error) -> EngineError {
    match error {
        Error::RequestTimeoutError => EngineError::Timeout { act, limit },
        Error::HyperLegacyError { .. }
        | Error::HyperResponseError { .. }
        | Error::IOError { .. }
        | Error::SocketNotFoundError(_)
        | Error::DockerResponseServerError { status_code: 502..=504, .. } => {
            EngineError::Unavailable { act, source: Box::new(error) }
        }
        other => EngineError::Refused { act, source: Box::new(other) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status_code: u16) -> EngineError {
        let error = Error::DockerResponseServerError { status_code, message: "no such container".to_owned() };
        meaning("kill", Duration::from_secs(1), error)
    }

    #[test]
    fn a_refusal_keeps_its_status() {
        assert!(matches!(answered(404), EngineError::Refused { act: "kill", .. }));
        assert!(matches!(answered(500), EngineError::Refused { .. }));
        assert!(matches!(answered(503), EngineError::Unavailable { .. }));
        assert_eq!(status(&answered(409)), Some(409));
    }

    #[test]
    fn a_broken_connection_is_not_a_refusal() {
        let broken = Error::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
        let meant = meaning("list", Duration::from_secs(1), broken);
        assert!(matches!(meant, EngineError::Unavailable { act: "list", .. }));
        assert_eq!(status(&meant), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_hangs_is_given_up() {
        let limit = Duration::from_secs(5);
        let hung = within::<()>("kill", limit, std::future::pending()).await;
        assert!(matches!(hung, Err(EngineError::Timeout { act: "kill", limit: l }) if l == limit));
    }
}
