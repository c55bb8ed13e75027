//! The client of tool servers: against servers made with rmcp's server side, servers that attack, and processes.

mod commands;
mod hostile;
mod served;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use mcp_sandbox_server::{
    adapters::tools::Connector,
    ports::tools::{Answer, OpenStreams, Progress, Streams, Transport, Upstream, UpstreamError, Upstreams as _},
};
use secrecy::SecretString;
use serde_json::{Map, Value};
use tokio::{io::DuplexStream, sync::mpsc, time::timeout};

const LONG: Duration = Duration::from_secs(30);

/// Waits for what must come. The bound only ends a test that hangs.
async fn soon<F: IntoFuture>(future: F) -> F::Output {
    timeout(LONG, future).await.expect("it comes")
}

/// A connection, and what tells of changed tools.
async fn connect(transport: &Transport) -> Result<(Arc<dyn Upstream>, mpsc::UnboundedReceiver<()>), UpstreamError> {
    let connector = Connector::new(std::env::var_os("PATH").unwrap_or_default()).expect("a connector");
    let (sender, changes) = mpsc::unbounded_channel();
    let callback = Arc::new(move || {
        let _ = sender.send(());
    });
    Ok((soon(connector.connect(transport, callback)).await?, changes))
}

/// Why a connection or a call failed.
fn error_of<T>(result: Result<T, UpstreamError>) -> UpstreamError {
    result.err().expect("it fails")
}

fn http(address: std::net::SocketAddr, headers: &[(&str, &str)]) -> Transport {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), SecretString::from(*value)));
    Transport::Http { url: format!("http://{address}/mcp").parse().expect("a URL"), headers: headers.collect() }
}

async fn serve(router: axum::Router) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// Gives the server's end of each pair of streams that is opened to a function.
fn streams(server: impl Fn(DuplexStream) + Send + Sync + 'static) -> Transport {
    let open: OpenStreams = Arc::new(move || {
        let (own, of_the_server) = tokio::io::duplex(1 << 16);
        server(of_the_server);
        let (reader, writer) = tokio::io::split(own);
        Box::pin(async move { Ok::<Streams, _>((Box::new(reader), Box::new(writer))) })
    });
    Transport::Streams { open, secrets: Vec::new() }
}

async fn call(upstream: &dyn Upstream, tool: &str) -> Result<Answer, UpstreamError> {
    call_with(upstream, tool, Map::new(), &Arc::default()).await
}

async fn call_with(
    upstream: &dyn Upstream,
    tool: &str,
    arguments: Map<String, Value>,
    seen: &Arc<Mutex<Vec<Progress>>>,
) -> Result<Answer, UpstreamError> {
    let seen = Arc::clone(seen);
    let sink = Arc::new(move |progress| seen.lock().expect("a lock").push(progress));
    soon(upstream.call(tool, arguments, sink)).await
}
