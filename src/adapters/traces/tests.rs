//! The sender against collectors that never answer, reject, or are away.

use std::sync::Arc;

use opentelemetry_proto::tonic::collector::trace::v1::{ExportTracePartialSuccess, ExportTraceServiceResponse};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    time::{Instant, advance},
};

use super::{
    sender::{LogLine, LossLog},
    *,
};
use crate::{
    config::{Config, Sources, load},
    domain::{clock::ManualClock, id::RequestId},
};

fn collector(port: u16) -> Collector {
    let pairs = [
        ("MCP_API_TOKEN", "0123456789abcdef".to_owned()),
        ("FILE_SECRET", "fedcba9876543210".to_owned()),
        ("SANDBOX_TRACES__OTLP_ENDPOINT", format!("http://127.0.0.1:{port}")),
    ];
    let environment = pairs.map(|(name, value)| (name.to_owned(), value)).to_vec();
    let config: Config = load(&Sources::environment_only(environment)).expect("settings");
    config.traces.collector().expect("settings").expect("a collector")
}

fn traces(port: u16, queue_max: usize) -> Traces {
    Traces::with_queue(collector(port), InstanceId::new(), Arc::new(ManualClock::at(1)), queue_max)
}

fn record(traces: &Traces) {
    traces.answered(&AnswerFacts {
        request: RequestId::new(),
        trace: TraceContext::root(),
        method: "GET",
        route: None,
        status: 200,
        took: Duration::from_secs(2),
        bytes: None,
    });
}

async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    (listener, port)
}

#[tokio::test(start_paused = true)]
async fn close_takes_at_most_a_second_when_the_collector_never_answers() {
    let (_listener, port) = listener().await;
    let traces = traces(port, 4);
    record(&traces);
    // The batch is under way.
    advance(Duration::from_secs(2)).await;
    record(&traces);
    let begun = Instant::now();
    traces.close().await;
    assert!(begun.elapsed() <= CLOSE_MAX + Duration::from_millis(10), "{:?}", begun.elapsed());
    assert_eq!(traces.counts(), TraceCounts { sent: 0, lost: 2 });
    record(&traces);
    assert_eq!(traces.counts().lost, 3, "a span after the end is lost and counted");
    traces.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_span_is_counted_as_lost_when_the_queue_is_full() {
    let (_listener, port) = listener().await;
    let traces = traces(port, 2);
    // The task has not run yet: nothing was awaited.
    for _ in 0..5 {
        record(&traces);
    }
    assert_eq!(traces.counts(), TraceCounts { sent: 0, lost: 3 });
    traces.close().await;
    assert_eq!(traces.counts(), TraceCounts { sent: 0, lost: 5 });
}

#[tokio::test]
async fn a_span_is_counted_as_lost_when_the_collector_rejects_it() {
    use prost::Message as _;

    let (listener, port) = listener().await;
    let traces = traces(port, 9);
    for _ in 0..3 {
        record(&traces);
    }
    let answer = async {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut head = vec![0; 4096];
        assert!(stream.read(&mut head).await.expect("a request") > 0);
        let partial = ExportTracePartialSuccess { rejected_spans: 2, ..Default::default() };
        let body = ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(&[head.as_bytes(), &body].concat()).await.expect("an answer");
    };
    tokio::join!(answer, traces.close());
    assert_eq!(traces.counts(), TraceCounts { sent: 1, lost: 2 });
}

#[tokio::test(start_paused = true)]
async fn losses_are_logged_once_a_minute() {
    let mut log = LossLog::default();
    assert_eq!(log.next(0, true), None);
    assert_eq!(log.next(3, false), Some(LogLine::Lost(3)));
    for second in 1..60 {
        advance(Duration::from_secs(1)).await;
        assert_eq!(log.next(3 + second, false), None);
    }
    advance(Duration::from_secs(1)).await;
    assert_eq!(log.next(70, false), Some(LogLine::Lost(67)));
    assert_eq!(log.next(70, true), None, "it may fail again");
    advance(Duration::from_mins(1)).await;
    assert_eq!(log.next(70, true), Some(LogLine::Recovered));
    assert_eq!(log.next(70, true), None);
    assert_eq!(log.next(71, false), Some(LogLine::Lost(1)));
}

#[tokio::test]
async fn a_sandbox_is_forgotten_when_it_is_destroyed() {
    let (_listener, port) = listener().await;
    let traces = traces(port, 9);
    let (run, sandbox) = (TraceContext::root(), SandboxId::new());
    traces.sandbox_held(run, sandbox);
    let call = CallFacts { operation: "destroy", sandbox: Some(sandbox), result: "refused", took: Duration::ZERO };
    traces.engine_called(&call);
    assert_eq!(traces.held.lock().len(), 1, "it is tried again");
    traces.engine_called(&CallFacts { result: "ok", ..call });
    assert_eq!(traces.held.lock().len(), 0);
    traces.close().await;
}
