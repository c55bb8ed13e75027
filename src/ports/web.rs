//! The web port: requests of this server to other servers. Each request has a limit of time and of bytes, and no
//! redirect is followed.

use std::time::Duration;

use async_trait::async_trait;

/// How long a request may take, from the first look-up of the name to the last byte.
pub const WEB_TIME_MAX: Duration = Duration::from_secs(3);
/// The largest answer, in bytes.
pub const WEB_BYTES_MAX: usize = 64 << 10;

/// Who named the server that is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedBy {
    /// An untrusted client: https only, and never to an address that is this machine's or not public.
    Client,
    /// The operator, in the settings: any address.
    Operator,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WebError {
    #[error("the address may not be asked")]
    Forbidden,
    #[error("it does not answer")]
    Unreachable,
    #[error("the answer is too large")]
    TooLarge,
    #[error("too many requests are under way")]
    Busy,
}

#[async_trait]
pub trait Web: Send + Sync {
    /// Sends a request and reads the whole answer, whatever its status.
    async fn send(
        &self,
        named_by: NamedBy,
        request: http::Request<Vec<u8>>,
    ) -> Result<http::Response<Vec<u8>>, WebError>;
}
