//! One batch to the collector: a POST on a connection of its own, bounded in time and in what is read of the answer.
//!
//! ```text
//! post ── one task for the connection: ends with the exchange, or is aborted when the caller gives up
//! ```

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message as _;
use tokio::{net::TcpStream, task::JoinSet, time::timeout};

use crate::config::Collector;

/// How long a collector may take to answer, connecting included (the default of OTLP exporters, `timeout`).
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How much of an answer is read, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Why a batch was not accepted. No variant holds what was sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum PostError {
    #[error("the collector cannot be connected to")]
    Connect(#[source] std::io::Error),
    #[error("the collector does not answer in HTTP")]
    Http(#[from] hyper::Error),
    #[error("the collector answers with status {0}")]
    Status(StatusCode),
    #[error("the collector does not answer within {} s", ANSWER_MAX.as_secs())]
    Timeout,
}

/// Sends a batch and returns how many of its spans the collector rejected.
pub(super) async fn post(collector: &Collector, body: Vec<u8>) -> Result<u64, PostError> {
    timeout(ANSWER_MAX, exchange(collector, body)).await.unwrap_or(Err(PostError::Timeout))
}

async fn exchange(collector: &Collector, body: Vec<u8>) -> Result<u64, PostError> {
    let stream = connect(collector).await.map_err(PostError::Connect)?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    // Dropped with this future, and the connection with it.
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let answer = sender.send_request(request(collector, body)).await?;
    if !answer.status().is_success() {
        return Err(PostError::Status(answer.status()));
    }
    // The status says that the batch was accepted, so an unreadable body is no failure.
    let Ok(body) = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await else { return Ok(0) };
    let partial = ExportTraceServiceResponse::decode(body.to_bytes()).unwrap_or_default().partial_success;
    Ok(partial.and_then(|partial| u64::try_from(partial.rejected_spans).ok()).unwrap_or(0))
}

pub(super) async fn connect(collector: &Collector) -> std::io::Result<TcpStream> {
    TcpStream::connect((collector.host.as_str(), collector.port)).await
}

fn request(collector: &Collector, body: Vec<u8>) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(body.into()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = collector.path.clone().into();
    let headers = request.headers_mut();
    headers.insert(
        header::USER_AGENT,
        HeaderValue::from_static(concat!("mcp-sandbox-server/", env!("CARGO_PKG_VERSION"))),
    );
    headers.extend(collector.headers.clone());
    headers.insert(header::HOST, collector.authority.clone());
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
    request
}
