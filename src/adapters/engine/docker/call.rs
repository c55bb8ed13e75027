//! One call of the engine: its time limit and the mapping of its errors. Decides on types and status codes, never on
//! the text of a message.

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
        Ok(answer) => answer.map_err(|error| map_error(act, limit, error)),
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

/// Whether the client could not parse the answer.
pub(super) fn is_unreadable(error: &EngineError) -> bool {
    let EngineError::Refused { source, .. } = error else { return false };
    matches!(source.downcast_ref::<Error>(), Some(Error::JsonDataError { .. }))
}

pub(super) fn map_error(act: &'static str, limit: Duration, error: Error) -> EngineError {
    match error {
        Error::RequestTimeoutError => EngineError::Timeout { act, limit },
        Error::HyperLegacyError { .. }
        | Error::HyperResponseError { .. }
        | Error::IOError { .. }
        | Error::SocketNotFoundError(_)
        | Error::DockerResponseServerError { status_code: 502..=504, .. } => EngineError::unavailable(act, error),
        other => EngineError::refused(act, other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status_code: u16) -> EngineError {
        let error = Error::DockerResponseServerError { status_code, message: "no such container".to_owned() };
        map_error("kill", Duration::from_secs(1), error)
    }

    #[test]
    fn refused_keeps_the_status_code() {
        assert!(matches!(answered(404), EngineError::Refused { act: "kill", .. }));
        assert!(matches!(answered(500), EngineError::Refused { .. }));
        assert!(matches!(answered(503), EngineError::Unavailable { .. }));
        assert_eq!(status(&answered(409)), Some(409));
    }

    #[test]
    fn a_broken_connection_is_unavailable() {
        let broken = Error::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
        let mapped = map_error("list", Duration::from_secs(1), broken);
        assert!(matches!(mapped, EngineError::Unavailable { act: "list", .. }));
        assert_eq!(status(&mapped), None);
    }

    #[tokio::test(start_paused = true)]
    async fn within_times_out_when_the_call_hangs() {
        let limit = Duration::from_secs(5);
        let hung = within::<()>("kill", limit, std::future::pending()).await;
        assert!(matches!(hung, Err(EngineError::Timeout { act: "kill", limit: l }) if l == limit));
    }
}
