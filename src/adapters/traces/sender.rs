//! The task that takes spans from the queue and posts them in batches. Spans that the collector does not accept are
//! lost; they are counted, and logged at most once a minute. Each batch is a POST on a connection of its own, bounded
//! in time and in what is read of the answer.
//!
//! ```text
//! post ── one task for the connection: ends with the exchange, or is aborted when the caller gives up
//! ```

use std::{pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::{
    collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse},
    common::v1::InstrumentationScope,
    resource::v1::Resource,
    trace::v1::{ResourceSpans, ScopeSpans, Span},
};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::{
    net::TcpStream,
    sync::mpsc::Receiver,
    task::JoinSet,
    time::{Instant, timeout},
};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tracing::{info, warn};

use super::{Counts, text};
use crate::{
    config::Collector,
    domain::{InstanceId, text::chain},
};

/// Spans of one request to the collector.
const BATCH_MAX: usize = 512;
/// How long the first span of a batch waits for more.
const GATHER: Duration = Duration::from_secs(1);
/// How often lost spans are logged.
const LOG_EVERY: Duration = Duration::from_mins(1);
/// How long a collector may take to answer, connecting included (the default of OTLP exporters, `timeout`).
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How much of an answer is read, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;

pub(super) struct Sender {
    pub collector: Collector,
    pub instance: InstanceId,
    pub counts: Arc<Mutex<Counts>>,
    pub loss_log: LossLog,
}

impl Sender {
    /// Sends until the queue is closed and empty.
    pub(super) async fn run(mut self, queue: Receiver<Span>) {
        let mut batches = pin!(ReceiverStream::new(queue).chunks_timeout(BATCH_MAX, GATHER));
        while let Some(batch) = batches.next().await {
            self.send(batch).await;
        }
    }

    async fn send(&mut self, batch: Vec<Span>) {
        let spans = batch.len() as u64;
        let posted = post(&self.collector, self.request(batch).encode_to_vec()).await;
        let (rejected, why) = match &posted {
            Ok(0) => (0, None),
            Ok(rejected) => (spans.min(*rejected), Some("the collector rejected some".to_owned())),
            Err(error) => (spans, Some(chain(error))),
        };
        let lost = {
            let counted = &mut self.counts.lock().counted;
            counted.sent += spans - rejected;
            counted.lost += rejected;
            counted.lost
        };
        self.log(lost, why.as_deref());
    }

    fn log(&mut self, lost: u64, why: Option<&str>) {
        match self.loss_log.next(lost, why.is_none()) {
            Some(LogLine::Lost(spans)) => {
                let why = why.unwrap_or("too many waited to be sent");
                warn!(spans, why, "spans of traces are lost: check the collector");
            }
            Some(LogLine::Recovered) => info!("traces are sent again"),
            None => {}
        }
    }

    fn request(&self, spans: Vec<Span>) -> ExportTraceServiceRequest {
        let (name, version) = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
        let attributes = vec![
            text("service.name", name),
            text("service.version", version),
            text("service.instance.id", self.instance.to_string()),
        ];
        let resource = Some(Resource { attributes, ..Resource::default() });
        let scope = InstrumentationScope { name: name.to_owned(), version: version.to_owned(), ..Default::default() };
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
        let resource_spans = vec![ResourceSpans { resource, scope_spans, ..ResourceSpans::default() }];
        ExportTraceServiceRequest { resource_spans }
    }
}

/// Decides what is logged about lost spans: a loss at once and then at most once a minute, and the recovery after a
/// minute without a loss.
#[derive(Debug, Default)]
pub(super) struct LossLog {
    /// How many lost spans were logged.
    logged: u64,
    /// When that was.
    at: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum LogLine {
    /// How many were lost since the last line.
    Lost(u64),
    Recovered,
}

impl LossLog {
    /// After each batch: `lost` counts all spans lost since the start, `accepted` is whether this batch was accepted
    /// whole.
    pub(super) fn next(&mut self, lost: u64, accepted: bool) -> Option<LogLine> {
        let a_while_ago = self.at.is_some_and(|at| at.elapsed() >= LOG_EVERY);
        if lost > self.logged && (a_while_ago || self.at.is_none()) {
            let more = lost - std::mem::replace(&mut self.logged, lost);
            self.at = Some(Instant::now());
            return Some(LogLine::Lost(more));
        }
        (accepted && a_while_ago).then(|| {
            self.at = None;
            LogLine::Recovered
        })
    }
}

/// Why a batch was not accepted. No variant holds what was sent.
#[derive(Debug, thiserror::Error)]
enum PostError {
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
async fn post(collector: &Collector, body: Vec<u8>) -> Result<u64, PostError> {
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
