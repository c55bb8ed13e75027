//! MCP servers as sources of tools, by rmcp's client: over Streamable HTTP, as a process of this machine, or by two
//! streams. Everything that a server sends is untrusted and bounded.
//!
//! ```text
//! connect ── rmcp has one task for each connection, and HTTP one for each stream of events; `Running` ends them
//! process ── one task takes a process' standard error; it and the process' group end with the connection
//! ```
//!
//! A server of revision 2026-07-28 is asked by `server/discover`, an older one by `initialize`. Requests of a server to
//! this client (sampling, elicitation, roots) are refused: no such capability is declared.

mod answer;
mod process;

use std::{
    collections::{HashMap, HashSet},
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use http::{HeaderName, HeaderValue};
use reqwest::{Certificate, Client, redirect::Policy};
use rmcp::{
    ClientHandler, RoleClient,
    model::{
        CallToolRequest, CallToolRequestParams, CancelledNotificationParam, ClientCapabilities, ClientConfig,
        ClientRequest, Implementation, PaginatedRequestParams, ProgressNotificationParam, ProgressToken,
        ProtocolVersion, RequestId, ServerResult, SubscriptionFilter,
    },
    service::{
        ClientInitializeError, ClientLifecycleMode, ClientServiceExt as _, NotificationContext, Peer,
        PeerRequestOptions, RunningService, ServiceError,
    },
    transport::{
        IntoTransport, StreamableHttpClientTransport, async_rw::AsyncRwTransport,
        streamable_http_client::StreamableHttpClientTransportConfig,
    },
};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Map, Value};
use tokio::time::timeout;
use tracing::debug;

use self::{answer::answered, process::Process};
use crate::{
    domain::tools::Tool,
    ports::tools::{
        Answer, DEFINITIONS_BYTES_MAX, MESSAGE_BYTES_MAX, Progress, ProgressSink, TOOLS_MAX, Transport, Upstream,
        UpstreamError, Upstreams,
    },
};

const CONNECT_MAX: Duration = Duration::from_secs(15);
const LIST_MAX: Duration = Duration::from_secs(30);
/// Pages of a list; an endless one ends there.
const PAGES_MAX: usize = 100;
/// How much of a server's or a library's text is told, in characters.
const TEXT_CHARS_MAX: usize = 500;

/// Connects to MCP servers.
pub struct Connector {
    client: Client,
}

/// Why connections cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("connections to tool servers cannot be made: {0}")]
pub struct ConnectorError(#[from] reqwest::Error);

impl Connector {
    /// # Errors
    /// When TLS cannot be set up.
    pub fn new() -> Result<Self, ConnectorError> {
        // An error says that the process has one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let built_in = webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().map(AsRef::as_ref);
        let roots = built_in.map(Certificate::from_der).collect::<Result<Vec<_>, _>>()?;
        // Headers hold secrets, which follow no redirect. A kept connection whose last answer was not read to its end
        // stalls the next request.
        let client = Client::builder()
            .tls_certs_merge(roots)
            .redirect(Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_MAX)
            .pool_max_idle_per_host(0)
            .user_agent(concat!("mcp-sandbox-server/", env!("CARGO_PKG_VERSION")));
        Ok(Self { client: client.build()? })
    }

    fn http(
        &self,
        url: &str,
        headers: &[(String, SecretString)],
    ) -> Result<StreamableHttpClientTransportConfig, UpstreamError> {
        let mut all = HashMap::new();
        for (name, value) in headers {
            let wrong =
                || UpstreamError::Unusable(format!("the header {name} has a name or a value that HTTP forbids"));
            let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
            let mut value = HeaderValue::from_str(value.expose_secret()).map_err(|_| wrong())?;
            value.set_sensitive(true);
            all.insert(header, value);
        }
        let mut config = StreamableHttpClientTransportConfig::with_uri(url);
        config.custom_headers = all;
        config.max_sse_event_size = MESSAGE_BYTES_MAX;
        config.max_concurrent_requests = 64;
        Ok(config)
    }
}

#[async_trait]
impl Upstreams for Connector {
    async fn connect(
        &self,
        transport: &Transport,
        changed: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Arc<dyn Upstream>, UpstreamError> {
        let connecting = async {
            match transport {
                Transport::Http { url, headers } => {
                    let config = self.http(url.as_str(), headers)?;
                    let transport = StreamableHttpClientTransport::with_client(self.client.clone(), config);
                    Running::begin(transport, changed, None).await
                }
                Transport::Command { program, arguments, env } => {
                    let (process, streams) = Process::start(program, arguments, env).map_err(|error| away(&error))?;
                    let transport = AsyncRwTransport::new(streams.0, streams.1).with_max_line_length(MESSAGE_BYTES_MAX);
                    Running::begin(transport, changed, Some(process)).await
                }
                Transport::Streams(open) => {
                    let (reader, writer) = open.open().await.map_err(|error| away(&error))?;
                    let transport = AsyncRwTransport::new(reader, writer).with_max_line_length(MESSAGE_BYTES_MAX);
                    Running::begin(transport, changed, None).await
                }
            }
        };
        timeout(CONNECT_MAX, connecting).await.unwrap_or(Err(UpstreamError::Late(CONNECT_MAX)))
    }
}

/// Who gets the progress of which call.
type Sinks = Arc<Mutex<HashMap<ProgressToken, ProgressSink>>>;

/// This client, as a server sees it.
struct Handler {
    changed: Arc<dyn Fn() + Send + Sync>,
    sinks: Sinks,
}

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        let identity = Implementation::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), identity)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        (self.changed)();
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        let sinks = self.sinks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sink) = sinks.get(&params.progress_token) {
            let message = params.message.map(|message| bounded(&message));
            sink(Progress { progress: params.progress, total: params.total, message });
        }
    }
}

/// A connection.
struct Running {
    service: RunningService<RoleClient, Handler>,
    sinks: Sinks,
    /// Ends with it.
    _process: Option<Process>,
}

impl Running {
    async fn begin<T, E, A>(
        transport: T,
        changed: Arc<dyn Fn() + Send + Sync>,
        process: Option<Process>,
    ) -> Result<Arc<dyn Upstream>, UpstreamError>
    where
        T: IntoTransport<RoleClient, E, A>,
        E: std::error::Error + Send + Sync + 'static,
    {
        let sinks = Sinks::default();
        let handler = Handler { changed: Arc::clone(&changed), sinks: Arc::clone(&sinks) };
        let lifecycle = ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
            legacy_version: Some(ProtocolVersion::LATEST_WITH_INITIALIZE),
        };
        let service = handler.serve_with_lifecycle(transport, lifecycle).await.map_err(|error| not_begun(&error))?;
        let is_modern = service.peer_info().is_some_and(|peer| !peer.protocol_version.has_initialize());
        if is_modern {
            let peer = service.peer().clone();
            tokio::spawn(async move { follow(&peer, changed.as_ref()).await });
        }
        Ok(Arc::new(Self { service, sinks, _process: process }))
    }
}

/// Follows changes of the tools of a server of the newest era, until the connection ends. A server that offers none ends
/// it at once.
async fn follow(peer: &Peer<RoleClient>, changed: &(dyn Fn() + Send + Sync)) {
    let filter = SubscriptionFilter::builder().tools_list_changed().build();
    let Ok(mut subscription) = peer.listen(filter).await else { return };
    while let Ok(Some(_)) = subscription.next().await {
        changed();
    }
}

/// Tells a server that a call is given up, unless it was answered.
struct GivenUp<'a> {
    running: &'a Running,
    id: RequestId,
    token: ProgressToken,
    is_answered: bool,
}

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        self.running.sinks.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.token);
        if !self.is_answered {
            let (peer, id) = (self.running.service.peer().clone(), self.id.clone());
            let param = CancelledNotificationParam::new(Some(id), Some("the program ended or gave it up".to_owned()));
            tokio::spawn(async move { peer.notify_cancelled(param).await });
        }
    }
}

#[async_trait]
impl Upstream for Running {
    async fn tools(&self) -> Result<Vec<Tool>, UpstreamError> {
        let listing = async {
            let (mut tools, mut names, mut bytes) = (Vec::new(), HashSet::new(), 0);
            let mut cursor = None;
            for _ in 0..PAGES_MAX {
                let before = cursor.clone();
                let page = PaginatedRequestParams::default().with_cursor(cursor);
                let page = self.service.list_tools(Some(page)).await.map_err(failed)?;
                for tool in page.tools.into_iter().filter_map(answer::tool) {
                    bytes += serde_json::to_vec(&tool).map_or(0, |json| json.len());
                    if bytes > DEFINITIONS_BYTES_MAX {
                        let why = format!("its tools have more than {DEFINITIONS_BYTES_MAX} bytes");
                        return Err(UpstreamError::Unusable(why));
                    }
                    if tools.len() < TOOLS_MAX && names.insert(tool.name.clone()) {
                        tools.push(tool);
                    }
                }
                cursor = page.next_cursor;
                if cursor.is_none() || cursor == before || tools.len() >= TOOLS_MAX {
                    break;
                }
            }
            Ok(tools)
        };
        timeout(LIST_MAX, listing).await.unwrap_or(Err(UpstreamError::Late(LIST_MAX)))
    }

    async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        progress: ProgressSink,
    ) -> Result<Answer, UpstreamError> {
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let options = PeerRequestOptions::no_options();
        let sent = self.service.peer().send_cancellable_request(request, options).await.map_err(failed)?;
        let (id, token) = (sent.id.clone(), sent.progress_token.clone());
        self.sinks.lock().unwrap_or_else(PoisonError::into_inner).insert(token.clone(), progress);
        let mut given_up = GivenUp { running: self, id, token, is_answered: false };
        let result = sent.await_response().await;
        given_up.is_answered = true;
        match result.map_err(failed)? {
            ServerResult::CallToolResult(result) => answered(result),
            ServerResult::InputRequiredResult(_) => {
                Err(UpstreamError::Refused("it asks for more input, which programs cannot give".to_owned()))
            }
            _ => Err(UpstreamError::Unusable("it is no result of a tool".to_owned())),
        }
    }

    fn is_open(&self) -> bool {
        !self.service.is_closed() && !self.service.peer().is_transport_closed()
    }
}

fn away(error: &io::Error) -> UpstreamError {
    UpstreamError::Away(bounded(&error.to_string()))
}

fn not_begun(error: &ClientInitializeError) -> UpstreamError {
    debug!(%error, "a tool server did not shake hands");
    match error {
        ClientInitializeError::JsonRpcError(error) => UpstreamError::Refused(bounded(&error.message)),
        ClientInitializeError::NoCompatibleProtocolVersion { .. } => {
            UpstreamError::Unusable("it speaks no revision of MCP that this server speaks".to_owned())
        }
        other => UpstreamError::Away(bounded(&other.to_string())),
    }
}

fn failed(error: ServiceError) -> UpstreamError {
    match error {
        ServiceError::McpError(error) => UpstreamError::Refused(bounded(&error.message)),
        ServiceError::UnexpectedResponse => UpstreamError::Unusable("it answered with something else".to_owned()),
        other => UpstreamError::Away(bounded(&other.to_string())),
    }
}

/// A stranger's text for one line.
fn bounded(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(TEXT_CHARS_MAX).collect()
}
