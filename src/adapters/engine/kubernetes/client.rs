//! The client of the API server: the vendor's layers over a connector of ours, since the vendor's own has no TCP
//! keep-alive. Without it, a connection whose other end vanished stays open, because an idle watch or stream never
//! writes and so never gets an error.
//!
//! Each connection is driven in a task of the vendor's, which ends with the connection.

use std::time::Duration;

use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Client, Config, Error,
    client::{Body, ConfigExt as _, retry::RetryPolicy},
};
use tower::{BoxError, ServiceBuilder, retry::RetryLayer};

/// Unanswered probes before a connection is closed.
const PROBES: u32 = 3;

/// A client whose connections break when nothing comes back over them for `silence_max`.
///
/// # Errors
/// When the certificates, the credentials or the proxy of the configuration cannot be used.
pub(super) fn client(mut config: Config, silence_max: Duration) -> Result<Client, Error> {
    if config.proxy_url.is_some() {
        // A stream whose program reads no input is silent, since its pings are not answered.
        config.read_timeout = None;
        // The vendor's own stack says which proxies it can use.
        return Client::try_from(config);
    }
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_nodelay(true);
    // No limit on unacknowledged data: it would also close a stream whose program does not read its input.
    connector.set_keepalive(Some(silence_max / (PROBES + 1)));
    connector.set_keepalive_interval(Some(silence_max / (PROBES + 1)));
    connector.set_keepalive_retries(Some(PROBES));
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let http = legacy::Client::builder(TokioExecutor::new()).build::<_, Body>(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then(|| RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service, config.default_namespace))
}
