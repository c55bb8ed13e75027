//! Streamable HTTP to tool servers: what is trusted, no redirects, bounds. rmcp speaks the protocol.

use std::{collections::HashMap, future::Future, sync::Arc, time::Duration};

use http::{HeaderName, HeaderValue};
use reqwest::{Certificate, Client, redirect::Policy};
use rmcp::{
    model::ClientJsonRpcMessage,
    transport::{
        common::client_side_sse::{BoxedSseResponse, ExponentialBackoff},
        streamable_http_client::{
            StreamableHttpClient, StreamableHttpClientTransportConfig, StreamableHttpError, StreamableHttpPostResponse,
        },
    },
};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep_until},
};
use url::Url;

use crate::ports::tools::{MESSAGE_BYTES_MAX, UpstreamError};

/// Requests of a connection whose answers have not begun.
const REQUESTS_MAX: usize = 64;
/// How often a stream that ended is opened again before its call fails, and the shortest time between two openings: a
/// server may ask for none.
const RESUMED_MAX: usize = 4;
const BETWEEN_STREAMS: Duration = Duration::from_millis(250);

/// With the roots that Mozilla publishes, and those of the system.
pub(super) fn client() -> Result<Client, reqwest::Error> {
    // reqwest takes the one of the process; an error says that there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let roots = webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().map(|root| Certificate::from_der(root.as_ref()));
    Client::builder()
        .tls_certs_merge(roots.collect::<Result<Vec<_>, _>>()?)
        // Headers hold secrets, which follow no redirect.
        .redirect(Policy::none())
        .no_proxy()
        .connect_timeout(Duration::from_secs(10))
        .user_agent(concat!("mcp-sandbox-server/", env!("CARGO_PKG_VERSION")))
        .build()
}

/// # Errors
/// A header is none.
pub(super) fn config(
    url: &Url,
    headers: &[(String, SecretString)],
) -> Result<StreamableHttpClientTransportConfig, UpstreamError> {
    let mut all = HashMap::new();
    for (name, value) in headers {
        let wrong = || UpstreamError::Unusable(format!("the header {name} is none that HTTP has"));
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
        let mut value = HeaderValue::from_str(value.expose_secret()).map_err(|_| wrong())?;
        value.set_sensitive(true);
        all.insert(header, value);
    }
    let mut again = ExponentialBackoff::default();
    again.max_times = Some(RESUMED_MAX);
    let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
        .custom_headers(all)
        .max_sse_event_size(MESSAGE_BYTES_MAX)
        .max_concurrent_requests(REQUESTS_MAX)
        // It would send a call again. The caller connects again instead.
        .reinit_on_expired_session(false);
    config.retry_config = Arc::new(again);
    Ok(config)
}

/// rmcp's client over reqwest, whose errors do not contain the address, and which opens streams at a bounded pace.
#[derive(Debug, Clone)]
pub(super) struct HttpClient {
    client: Client,
    next_stream: Arc<Mutex<Instant>>,
}

type Failed = StreamableHttpError<reqwest::Error>;
type Headers = HashMap<HeaderName, HeaderValue>;

impl HttpClient {
    pub(super) fn new(client: Client) -> Self {
        Self { client, next_stream: Arc::new(Mutex::new(Instant::now())) }
    }
}

async fn without_address<T>(answer: impl Future<Output = Result<T, Failed>>) -> Result<T, Failed> {
    answer.await.map_err(|error| match error {
        StreamableHttpError::Client(error) => StreamableHttpError::Client(error.without_url()),
        other => other,
    })
}

impl StreamableHttpClient for HttpClient {
    type Error = reqwest::Error;

    // The methods that take a size call these by default: the one of each connection is that of `config`.
    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        auth: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let max = MESSAGE_BYTES_MAX;
        let post = self.client.post_message_with_max_sse_event_size(uri, message, session, auth, headers, max);
        without_address(post).await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        auth: Option<String>,
        headers: Headers,
    ) -> Result<(), Failed> {
        without_address(self.client.delete_session(uri, session, auth, headers)).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        auth: Option<String>,
        headers: Headers,
    ) -> Result<BoxedSseResponse, Failed> {
        let max = MESSAGE_BYTES_MAX;
        {
            let mut next = self.next_stream.lock().await;
            sleep_until(*next).await;
            *next = Instant::now() + BETWEEN_STREAMS;
        }
        let get = self.client.get_stream_with_max_sse_event_size(uri, session, last_event, auth, headers, max);
        without_address(get).await
    }
}
