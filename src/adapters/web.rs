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
    domain::{
        address::{destination, is_public},
        text::chain,
    },
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
    permits: Semaphore,
}

/// Why the clients cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("requests to other servers cannot be made")]
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
        Self::resolving(judge, more_roots, SystemResolver)
    }

    fn resolving(judge: Judge, more_roots: &[Vec<u8>], names: impl Resolve + 'static) -> Result<Self, WebStartError> {
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
            judged: client()
                .https_only(true)
                .pool_max_idle_per_host(0)
                .dns_resolver(JudgingResolver { judge, names })
                .build()?,
            any: client().build()?,
            judge,
            permits: Semaphore::new(CLIENT_NAMED_MAX),
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
            NamedBy::Client => (&self.judged, Some(self.permits.try_acquire().map_err(|_| WebError::Busy)?)),
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

struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found: Vec<SocketAddr> = lookup_host((name.as_str(), 0)).await?.collect();
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Resolves names to addresses of which each one may be asked.
struct JudgingResolver<R> {
    judge: Judge,
    names: R,
}

impl<R: Resolve> Resolve for JudgingResolver<R> {
    fn resolve(&self, name: Name) -> Resolving {
        let (judge, found) = (self.judge, self.names.resolve(name));
        Box::pin(async move {
            let found: Vec<SocketAddr> = found.await?.collect();
            if found.is_empty() || !found.iter().all(|address| judge(address.ip())) {
                return Err(WebError::Forbidden.into());
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Whether an address leads to this machine: the system lets a socket have it.
fn is_own(address: IpAddr) -> bool {
    [address, destination(address)].into_iter().any(|address| UdpSocket::bind((address, 0)).is_ok())
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use tokio::net::TcpListener;

    use super::*;
    use crate::ports::web::Web as _;

    /// In place of a public address and of a private one.
    const PUBLIC: [u8; 4] = [127, 0, 0, 1];
    const PRIVATE: [u8; 4] = [127, 0, 0, 2];

    /// The first look-up finds the public address, each later one the private address. Counts look-ups.
    struct Rebinding(Arc<AtomicUsize>);

    impl Resolve for Rebinding {
        fn resolve(&self, _: Name) -> Resolving {
            let address = if self.0.fetch_add(1, Ordering::SeqCst) == 0 { PUBLIC } else { PRIVATE };
            let found: Addrs = Box::new(std::iter::once(SocketAddr::from((address, 0))));
            Box::pin(std::future::ready(Ok(found)))
        }
    }

    /// Counts connections, and closes each.
    fn counted(listener: TcpListener) -> Arc<AtomicUsize> {
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::SeqCst);
                drop(stream);
            }
        });
        connections
    }

    #[tokio::test]
    async fn name_that_is_rebound_to_a_private_address_gains_nothing() {
        let public = TcpListener::bind((IpAddr::from(PUBLIC), 0)).await.expect("a port");
        let port = public.local_addr().expect("an address").port();
        let private = TcpListener::bind((IpAddr::from(PRIVATE), port)).await.expect("the same port");
        let (public, private, look_ups) = (counted(public), counted(private), Arc::<AtomicUsize>::default());
        let judge: Judge = |address| address == IpAddr::from(PUBLIC);
        let web = Web::resolving(judge, &[], Rebinding(Arc::clone(&look_ups))).expect("TLS");
        // The first connection goes to the address that was judged, and the second answer is refused.
        for round in 1..=2 {
            let request = http::Request::get(format!("https://rebound.test:{port}/")).body(Vec::new());
            let answer = web.send(NamedBy::Client, request.expect("a request")).await.map(drop);
            assert_eq!(answer, Err(WebError::Unreachable));
            let counts = [&look_ups, &public, &private].map(|count| count.load(Ordering::SeqCst));
            assert_eq!(counts, [round, 1, 0], "look-ups, and connections to each address");
        }
    }

    #[test]
    fn own_addresses_are_known_also_inside_of_others() {
        for (text, own) in [
            ("127.0.0.1", true),
            ("64:ff9b::127.0.0.1", true),
            ("2002:7f00:1::1", true),
            ("1.1.1.1", false),
            ("64:ff9b::1.1.1.1", false),
        ] {
            assert_eq!(is_own(text.parse().expect(text)), own, "{text}");
        }
    }
}
