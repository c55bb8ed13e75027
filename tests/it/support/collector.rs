//! A collector of traces, which decodes the server's spans with OpenTelemetry's own protocol definitions.

use std::sync::{Arc, Mutex};

use axum::{Router, body::Bytes, extract::State, http::HeaderMap, http::StatusCode, routing::post};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span,
};
use prost::Message as _;
use tokio::{io::AsyncReadExt as _, net::TcpListener, sync::watch};
use tokio_util::task::AbortOnDropHandle;

use super::http::serve;

/// A request as it came.
type Got = (HeaderMap, Bytes);

pub struct Collector {
    /// What the setting says.
    pub endpoint: String,
    got: Arc<Mutex<Vec<Got>>>,
    _serving: AbortOnDropHandle<()>,
}

impl Collector {
    /// One that answers everything with this status.
    pub async fn answering(status: StatusCode) -> Self {
        let got = Arc::<Mutex<Vec<Got>>>::default();
        let take = move |State(got): State<Arc<Mutex<Vec<Got>>>>, headers: HeaderMap, body: Bytes| async move {
            got.lock().expect("the list").push((headers, body));
            status
        };
        let router = Router::new().route("/v1/traces", post(take)).with_state(Arc::clone(&got));
        let (address, serving) = serve(router).await;
        Self { endpoint: format!("http://{address}"), got, _serving: serving }
    }

    pub async fn start() -> Self {
        Self::answering(StatusCode::OK).await
    }

    /// Requests so far. A server that has stopped sends no more.
    pub fn got(&self) -> Vec<Got> {
        self.got.lock().expect("the list").clone()
    }

    pub fn spans(&self) -> Vec<Span> {
        let read = |(_, body): Got| ExportTraceServiceRequest::decode(body).expect("OTLP");
        let resources = self.got().into_iter().flat_map(|got| read(got).resource_spans);
        resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans).collect()
    }

    /// The only span of this name in a trace.
    pub fn span(&self, trace: &[u8], name: &str) -> Span {
        let all = self.spans();
        let found: Vec<_> = all.iter().filter(|span| span.trace_id == trace && span.name == name).collect();
        let [one] = found[..] else {
            let names: Vec<_> = all.iter().map(|span| (&span.name, hex(&span.trace_id))).collect();
            panic!("{} spans `{name}` in {}: {names:#?}", found.len(), hex(trace))
        };
        one.clone()
    }
}

/// A collector that takes connections and never answers.
pub struct Silent {
    pub endpoint: String,
    /// How many bytes it was sent, and how many connections were given up.
    pub seen: watch::Receiver<(usize, usize)>,
    _serving: AbortOnDropHandle<()>,
}

impl Silent {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let (tell, seen) = watch::channel((0, 0));
        let serving = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let mut buffer = vec![0; 64 << 10];
                while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                    tell.send_modify(|(bytes, _)| *bytes += read);
                }
                tell.send_modify(|(_, given_up)| *given_up += 1);
            }
        });
        Self { endpoint, seen, _serving: AbortOnDropHandle::new(serving) }
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
}

/// An attribute as text.
pub fn attribute(span: &Span, key: &str) -> Option<String> {
    let found: Option<&KeyValue> = span.attributes.iter().find(|pair| pair.key == key);
    found.and_then(|pair| pair.value.clone()?.value).map(|value| match value {
        Value::StringValue(text) => text,
        Value::IntValue(number) => number.to_string(),
        Value::BoolValue(flag) => flag.to_string(),
        other => panic!("{key} is {other:?}"),
    })
}
