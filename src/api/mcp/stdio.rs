//! The same server over standard input and output, for clients that start a process. Logs go to standard error.

use rmcp::{ServiceExt, service::ServerInitializeError, transport::stdio_pipes};
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

use super::{McpParts, McpServer, Transport};

/// Why serving ended, unless the client or the operator ended it.
#[derive(Debug, thiserror::Error)]
pub enum StdioError {
    /// The client began with something else than the protocol's opening.
    #[error("the client did not open the protocol")]
    Opening(#[source] Box<ServerInitializeError>),
    /// A fault of ours.
    #[error("the service failed")]
    Failed(#[from] JoinError),
}

/// Serves until the client closes its end or `shutdown`.
///
/// # Errors
/// When the client does not speak the protocol.
pub async fn serve_stdio(parts: McpParts, shutdown: CancellationToken) -> Result<(), StdioError> {
    let server = McpServer::new(parts, Transport::Stdio);
    // Where the streams are pipes they are read without a blocking thread, which would outlive `shutdown`.
    match server.serve_with_ct(stdio_pipes(), shutdown).await {
        Ok(service) => service.waiting().await.map(drop).map_err(StdioError::from),
        // The client closed its end before it sent anything.
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => Ok(()),
        Err(error) => Err(StdioError::Opening(Box::new(error))),
    }
}
