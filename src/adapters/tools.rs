//! MCP servers as sources of tools, by rmcp's client: over Streamable HTTP, as a process of this machine, or by two
//! streams. Everything that a server sends is untrusted and bounded. Which tools may be called is decided above.
//!
//! ```text
//! connection ─ rmcp: a task for it, one for each HTTP stream ─ end when `Connection` is dropped
//!            ├ a task that listens for changed tools (newest era) ─ aborted with it
//!            └ process: a task that ends its group, one that logs its standard error ─ end with the process
//! ```
//!
//! A server of revision 2026-07-28 is asked by `server/discover`, an older one by `initialize`. Requests of a server to
//! this client (sampling, elicitation, roots) are refused: no such capability is declared.

mod connection;
mod failure;
mod handler;
mod http;
mod process;
mod streams;

use std::{ffi::OsString, sync::Arc, time::Duration};

use async_trait::async_trait;
use rmcp::transport::StreamableHttpClientTransport;
use tokio::time::timeout;

use self::{
    connection::Connection,
    failure::Secrets,
    http::HttpClient,
    streams::{Link, linked},
};
use crate::ports::tools::{Transport, Upstream, UpstreamError, Upstreams};

/// The longest that connecting takes, and where the server is started for it in a sandbox, which may have to fetch it.
const CONNECT_MAX: Duration = Duration::from_secs(15);
const START_MAX: Duration = Duration::from_mins(1);

/// Connects to MCP servers.
#[derive(Debug)]
pub struct Connector {
    client: reqwest::Client,
    /// `PATH` of the commands.
    path: OsString,
}

/// Why connections cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("connections to tool servers cannot be made")]
pub struct ConnectorError(#[from] reqwest::Error);

impl Connector {
    /// `path` is where commands are looked for, and the `PATH` that they get.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub fn new(path: OsString) -> Result<Self, ConnectorError> {
        Ok(Self { client: http::client()?, path })
    }
}

#[async_trait]
impl Upstreams for Connector {
    async fn connect(
        &self,
        transport: &Transport,
        changed: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Arc<dyn Upstream>, UpstreamError> {
        let secrets = Arc::new(Secrets::of(transport));
        let connecting = async {
            let (link, hidden) = (Link::default(), Arc::clone(&secrets));
            let connection = match transport {
                Transport::Http { url, headers } => {
                    let client = HttpClient::new(self.client.clone());
                    let transport = StreamableHttpClientTransport::with_client(client, http::config(url, headers)?);
                    Connection::begin(transport, changed, hidden, link).await?
                }
                Transport::Command { program, arguments, env } => {
                    let started = process::start(program, arguments, env, &self.path, &link, Arc::clone(&secrets));
                    let (stdout, stdin) = started.map_err(|error| secrets.unavailable(&error))?;
                    Connection::begin(linked(stdout, stdin, &link), changed, hidden, link).await?
                }
                Transport::Streams { open, .. } => {
                    let (reader, writer) = open().await.map_err(|error| secrets.unavailable(&error))?;
                    Connection::begin(linked(reader, writer, &link), changed, hidden, link).await?
                }
            };
            Ok(Arc::new(connection) as Arc<dyn Upstream>)
        };
        let max = if matches!(transport, Transport::Streams { .. }) { START_MAX } else { CONNECT_MAX };
        timeout(max, connecting).await.unwrap_or(Err(UpstreamError::Late(max)))
    }
}
