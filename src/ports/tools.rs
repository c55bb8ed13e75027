//! The port of tools: MCP servers whose tools programs may call. A service decides on each call.

use std::{fmt, io, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use secrecy::SecretString;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use url::Url;

use crate::domain::tools::Tool;

/// Tools of one server; more are left out.
pub const TOOLS_MAX: usize = 512;
/// All definitions of one server as JSON, in bytes; a server with more has none.
pub const DEFINITIONS_BYTES_MAX: usize = 4 << 20;
/// One message of a server, in bytes: an answer with its pictures. A longer one ends the connection.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// How a server is reached.
#[derive(Clone)]
pub enum Transport {
    /// Streamable HTTP. The headers hold secrets.
    Http { url: Url, headers: Vec<(String, SecretString)> },
    /// A process of this machine that speaks by standard input and output. It gets these variables and `PATH`, nothing
    /// else of this server's environment.
    Command { program: String, arguments: Vec<String>, env: Vec<(String, SecretString)> },
    /// Two streams, opened for each connection. The server knows the secrets, and errors must not contain them.
    Streams { open: OpenStreams, secrets: Vec<SecretString> },
}

/// What the server writes, and what it reads. Dropping both ends it.
pub type Streams = (Box<dyn AsyncRead + Send + Unpin>, Box<dyn AsyncWrite + Send + Unpin>);

/// Opens the streams of a server.
pub type OpenStreams = Arc<dyn Fn() -> BoxFuture<'static, io::Result<Streams>> + Send + Sync>;

/// Why a server did not answer. The texts are the server's or a library's: untrusted, and for its owner alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamError {
    /// It cannot be reached or started, or its connection ended.
    #[error("the tool server is away: {0}")]
    Away(String),
    /// It answered with an error of the protocol.
    #[error("the tool server refused: {0}")]
    Refused(String),
    /// What it sent is no MCP, or more than it may be.
    #[error("the tool server's answer is not usable: {0}")]
    Unusable(String),
    #[error("the tool server did not answer within {} s", .0.as_secs())]
    Late(Duration),
}

/// A part of an answer that is no text.
#[derive(Clone, PartialEq, Eq)]
pub struct Attachment {
    /// As the server says; untrusted.
    pub media_type: String,
    pub bytes: Vec<u8>,
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attachment({}, {} bytes)", self.media_type, self.bytes.len())
    }
}

/// What a tool answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The tool itself failed; its texts say why.
    pub is_error: bool,
    pub structured: Option<Value>,
    /// Texts, texts of embedded resources, and addresses of linked ones, in order.
    pub texts: Vec<String>,
    /// Pictures, sounds and other embedded contents.
    pub attachments: Vec<Attachment>,
}

/// How far a call is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Progress {
    pub progress: f64,
    pub total: Option<f64>,
    pub message: Option<String>,
}

/// Receives the progress of one call. Never waits.
pub type ProgressSink = Arc<dyn Fn(Progress) + Send + Sync>;

/// Connects to servers.
#[async_trait]
pub trait Upstreams: Send + Sync {
    /// Connects and shakes hands, in the newest era of the protocol that both speak. `changed` is called when the
    /// server says that its tools are others now.
    ///
    /// # Errors
    /// It is away, or does not speak MCP.
    async fn connect(
        &self,
        transport: &Transport,
        changed: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Arc<dyn Upstream>, UpstreamError>;
}

/// A connection to a server. Dropping the last reference closes it; a process is ended then.
#[async_trait]
pub trait Upstream: Send + Sync {
    /// All its tools, every page, at most [`TOOLS_MAX`]; of two with one name the first.
    ///
    /// # Errors
    /// It is away, or they are more than [`DEFINITIONS_BYTES_MAX`].
    async fn tools(&self) -> Result<Vec<Tool>, UpstreamError>;

    /// Calls a tool once; it is never sent again, whatever failed. Several may be under way. When the future is
    /// dropped, the server is notified that the call is cancelled.
    ///
    /// # Errors
    /// Why there is no answer. The call may have been made unless it was [`UpstreamError::Refused`].
    async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        progress: ProgressSink,
    ) -> Result<Answer, UpstreamError>;

    /// Whether calls can still be made by it.
    fn is_open(&self) -> bool;
}
