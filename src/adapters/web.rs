//! Requests to other servers, by `reqwest` with rustls. Certificates are checked against the roots that Mozilla
//! publishes, which are part of the binary, and those of the system (`SSL_CERT_FILE`).
//!
//! Names in addresses that clients give are resolved and checked here. The connection goes to the checked addresses, so
//! a name that resolves differently the next time gains nothing.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use async_trait::async_trait;
use reqwest::{
    Certificate, Client,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect::Policy,
};
use tokio::{net::lookup_host, sync::Semaphore};
use tracing::{debug, warn};
use url::{Host, Url};

use crate::{
    domain::{address::is_public, text::chain},
    ports::web::{NamedBy, WEB_BYTES_MAX, WEB_TIME_MAX, WebError},
};

/// Requests at once to addresses that clients name.
const CLIENT_NAMED_MAX: usize = 8;

/// Whether an address that a client named may be connected to.
pub type Judge = fn(IpAddr) -> bool;

pub struct Web {
    /// To addresses that clients name.
    judged: Client,
    any: Client,
    judge: Judge,
    places: Semaphore,
}

/// Why the clients cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("requests to other servers cannot be made: {0}")]
pub struct WebStartError(#[from] reqwest::Error);

impl Web {
    /// # Errors
    /// When TLS cannot be set up.
    pub fn new() -> Result<Self, WebStartError> {
        Self::judging(|address| is_public(address) && !is_own(address), &[])
    }

    /// With another judge and more roots, in DER.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn judging(judge: Judge, more_roots: &[Vec<u8>]) -> Result<Self, WebStartError> {
        // reqwest takes the one of the process; an error says that there is one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let built_in = webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().map(AsRef::as_ref);
        let roots = built_in.chain(more_roots.iter().map(Vec::as_slice)).map(Certificate::from_der);
        let roots = roots.collect::<Result<Vec<_>, _>>()?;
        let client = || {
            Client::builder()
                .tls_certs_merge(roots.clone())
                .redirect(Policy::none())
                .no_proxy()
                .timeout(WEB_TIME_MAX)
                .user_agent(concat!("mcp-sandbox-server/", env!("CARGO_PKG_VERSION")))
        };
        Ok(Self {
            // A kept connection would be used without another look at its address.
            judged: client().https_only(true).pool_max_idle_per_host(0).dns_resolver(JudgingResolver(judge)).build()?,
            any: client().build()?,
            judge,
            places: Semaphore::new(CLIENT_NAMED_MAX),
        })
    }

    /// Numbers are not resolved, so they are judged here.
    fn may_ask(&self, address: &str) -> bool {
        let Ok(url) = Url::parse(address) else { return false };
        match url.host() {
            Some(Host::Domain(_)) => true,
            Some(Host::Ipv4(address)) => (self.judge)(address.into()),
            Some(Host::Ipv6(address)) => (self.judge)(address.into()),
            None => false,
        }
    }
}

#[async_trait]
impl crate::ports::web::Web for Web {
    async fn send(
        &self,
        named_by: NamedBy,
        request: http::Request<Vec<u8>>,
    ) -> Result<http::Response<Vec<u8>>, WebError> {
        let address = request.uri().to_string();
        let (client, _place) = match named_by {
            NamedBy::Operator => (&self.any, None),
            NamedBy::Client if !self.may_ask(&address) => return Err(WebError::Forbidden),
            NamedBy::Client => (&self.judged, Some(self.places.try_acquire().map_err(|_| WebError::Busy)?)),
        };
        let failed = |error: reqwest::Error| {
            if named_by == NamedBy::Operator {
                warn!(address, error = chain(&error), "a server that the settings name does not answer");
            } else {
                debug!(address, error = chain(&error), "a server that a client names does not answer");
            }
            WebError::Unreachable
        };
        let request = reqwest::Request::try_from(request).map_err(failed)?;
        let mut response = client.execute(request).await.map_err(failed)?;
        let mut answer = http::Response::new(Vec::new());
        *answer.status_mut() = response.status();
        *answer.headers_mut() = response.headers().clone();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if answer.body().len() + chunk.len() > WEB_BYTES_MAX {
                return Err(WebError::TooLarge);
            }
            answer.body_mut().extend_from_slice(&chunk);
        }
        Ok(answer)
    }
}

/// Resolves names to addresses of which each one may be asked.
struct JudgingResolver(Judge);

impl Resolve for JudgingResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let judge = self.0;
        Box::pin(async move {
            let found: Vec<SocketAddr> = lookup_host((name.as_str(), 0)).await?.collect();
            if found.is_empty() || !found.iter().all(|address| judge(address.ip())) {
                return Err(WebError::Forbidden.into());
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Whether an address is this machine's: the system lets a socket have it.
fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

impl std::fmt::Debug for Web {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Web(…)")
    }
}
