//! The same server over standard input and output, for clients that start a process. Logs go to standard error.
//!
//! A message is a line. rmcp's own transport for this ignores what is not JSON and knows no batch.

use std::{
    borrow::Cow,
    collections::VecDeque,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::StreamExt as _;
use rmcp::{
    ErrorData, RoleServer, ServiceExt,
    model::{
        ClientJsonRpcMessage, ErrorCode, JsonRpcMessage, ProtocolVersion, RequestId, ServerJsonRpcMessage, ServerResult,
    },
    service::ServerInitializeError,
    transport::{StdioReader, StdioWriter, Transport as RmcpTransport, stdio_pipes},
};
use serde_json::{Value, error::Category};
use tokio::{io::AsyncWriteExt as _, sync::Mutex, task::JoinError};
use tokio_util::{
    codec::{AnyDelimiterCodec, AnyDelimiterCodecError, FramedRead},
    sync::CancellationToken,
};

use super::{McpParts, McpServer, Transport};
use crate::domain::ConversationId;

/// The longest message, in bytes.
const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// Messages in one batch, over HTTP too.
pub const BATCH_MESSAGES_MAX: usize = 32;
/// The longest id of a message, in characters, over HTTP too.
pub const ID_CHARS_MAX: usize = 128;

/// The answer to a line that is no message.
type Refusal = Box<ServerJsonRpcMessage>;

const TOO_LONG: &str = "The line is longer than 16 MiB: send less at once, or share a folder by --mount.";

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
    let server = McpServer::new(Arc::new(parts), Transport::Stdio(ConversationId::fresh()));
    match Box::pin(server.serve_with_ct(Lines::new(), shutdown)).await {
        Ok(service) => service.waiting().await.map(drop).map_err(StdioError::from),
        // The client closed its end before it sent anything.
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => Ok(()),
        Err(error) => Err(StdioError::Opening(Box::new(error))),
    }
}

struct Lines {
    input: FramedRead<StdioReader, AnyDelimiterCodec>,
    /// A line was too long. The codec skips the rest of it, and after an error the reader ends once.
    skips: bool,
    /// What is left of a batch.
    batch: VecDeque<Value>,
    /// The client's revision of the protocol has batches.
    batches: Arc<AtomicBool>,
    output: Arc<Mutex<StdioWriter>>,
}

impl Lines {
    fn new() -> Self {
        // Where the streams are pipes they are read without a blocking thread, which would outlive `shutdown`.
        let (input, output) = stdio_pipes();
        let codec = AnyDelimiterCodec::new_with_max_length(b"\n".to_vec(), b"\n".to_vec(), MESSAGE_BYTES_MAX);
        Self {
            input: FramedRead::new(input, codec),
            skips: false,
            batch: VecDeque::new(),
            batches: Arc::default(),
            output: Arc::new(Mutex::new(output)),
        }
    }

    /// The message of a line; the first of a batch, whose others are kept.
    fn parse(&mut self, line: &[u8]) -> Result<ClientJsonRpcMessage, Refusal> {
        let message = match serde_json::from_slice(line) {
            Ok(Value::Array(messages)) if self.batches.load(Ordering::Relaxed) => {
                if !(1..=BATCH_MESSAGES_MAX).contains(&messages.len()) {
                    let count = messages.len();
                    let why = format!("The line is a batch of {count}: send 1 to {BATCH_MESSAGES_MAX} messages.");
                    return Err(refused(ErrorCode::INVALID_REQUEST, why, None));
                }
                self.batch = messages.into();
                self.batch.pop_front().unwrap_or_default()
            }
            Ok(message) => message,
            Err(error) => {
                let code = if error.classify() == Category::Data {
                    ErrorCode::INVALID_REQUEST
                } else {
                    ErrorCode::PARSE_ERROR
                };
                return Err(refused(code, "The line is not JSON: send one message a line.", None));
            }
        };
        one(message)
    }
}

fn one(message: Value) -> Result<ClientJsonRpcMessage, Refusal> {
    let id = message.get("id");
    if id.and_then(Value::as_str).is_some_and(|id| id.chars().count() > ID_CHARS_MAX) {
        let why = format!("id: it must be a string of at most {ID_CHARS_MAX} characters or a whole number.");
        return Err(refused(ErrorCode::INVALID_REQUEST, why, None));
    }
    let id = id.and_then(|id| serde_json::from_value(id.clone()).ok());
    let why = "The line is no JSON-RPC message that this server knows: see the MCP specification.";
    serde_json::from_value(message).map_err(|_| refused(ErrorCode::INVALID_REQUEST, why, id))
}

fn refused(code: ErrorCode, why: impl Into<Cow<'static, str>>, id: Option<RequestId>) -> Refusal {
    Box::new(JsonRpcMessage::error(ErrorData::new(code, why, None), id))
}

impl RmcpTransport<RoleServer> for Lines {
    type Error = io::Error;

    fn send(&mut self, message: ServerJsonRpcMessage) -> impl Future<Output = io::Result<()>> + Send + 'static {
        if let JsonRpcMessage::Response(response) = &message
            && let ServerResult::InitializeResult(result) = &response.result
        {
            self.batches.store(result.protocol_version == ProtocolVersion::V_2025_03_26, Ordering::Relaxed);
        }
        let output = Arc::clone(&self.output);
        async move {
            let mut line = serde_json::to_vec(&message)?;
            line.push(b'\n');
            let mut output = output.lock().await;
            output.write_all(&line).await?;
            output.flush().await
        }
    }

    /// Cancel safe: what was read is in the codec's buffer or in the batch.
    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            let read = match self.batch.pop_front() {
                Some(message) => one(message),
                None => match self.input.next().await {
                    Some(Ok(line)) if line.trim_ascii().is_empty() => continue,
                    Some(Ok(line)) => self.parse(&line),
                    Some(Err(AnyDelimiterCodecError::MaxChunkLengthExceeded)) => {
                        self.skips = true;
                        Err(refused(ErrorCode::INVALID_REQUEST, TOO_LONG, None))
                    }
                    None if std::mem::take(&mut self.skips) => continue,
                    Some(Err(error)) => {
                        tracing::warn!(%error, "standard input cannot be read");
                        return None;
                    }
                    None => return None,
                },
            };
            match read {
                Ok(message) => return Some(message),
                // In a task of its own, since this future may be dropped at an await.
                Err(error) => drop(tokio::spawn(self.send(*error))),
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.output.lock().await.flush().await
    }
}
