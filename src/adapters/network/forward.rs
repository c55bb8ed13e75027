//! Forwards requests of programs: each is parsed, decided and rewritten, so no byte of its head is copied. Where the
//! server opens TLS, the values of secrets are inserted here, and their echoes removed from the answers.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header};
use http_body_util::BodyExt;
use hyper::{
    body::{Body as _, Incoming},
    client::conn::http1::{Builder, SendRequest},
};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Mutex,
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::TlsConnector;
use tracing::debug;

use super::{
    HEAD_BYTES_MAX, Sandbox,
    answer::{self, Answer},
    upstream::{Activity, ProgramEnd, Upstream},
};
use crate::domain::network::{Host, Pattern, Refusal, RequestLine, SandboxSecret, Target};

/// How long a host may take to agree on TLS.
const TLS_MAX: Duration = Duration::from_secs(10);

/// Headers of one connection, which are not passed on (RFC 9110, section 7.6.1), beside those that `Connection` names.
const OF_CONNECTION: [HeaderName; 8] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];
/// By these some servers take another method or path than the request's.
const OVERRIDES: [&str; 9] = [
    "x-forwarded-uri",
    "x-http-method",
    "x-http-method-override",
    "x-http-path-override",
    "x-method-override",
    "x-original-uri",
    "x-original-url",
    "x-override-url",
    "x-rewrite-url",
];

/// How a host is spoken with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    Http,
    /// The program's TLS ends here, and another begins.
    Opened,
}

impl Scheme {
    pub(super) fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Opened => 443,
        }
    }
}

/// A connection to a host, for its next request. It is recorded when it ends before that.
type Connected = (SendRequest<Incoming>, Weak<Activity>);

/// Forwards the requests of one connection of a client, to one host at a time.
pub(super) struct Forwarder {
    pub(super) sandbox: Arc<Sandbox>,
    scheme: Scheme,
    pub(super) program_ended: ProgramEnd,
    /// The host of the last request, for the next one.
    host: Mutex<Option<(Target, Connected)>>,
    tasks: Mutex<JoinSet<()>>,
}

impl Forwarder {
    pub(super) fn new(sandbox: Arc<Sandbox>, scheme: Scheme, program_ended: ProgramEnd) -> Self {
        Self { sandbox, scheme, program_ended, host: Mutex::default(), tasks: Mutex::default() }
    }

    /// No request follows; waits for the connections to end.
    pub(super) async fn end(&self) {
        *self.host.lock().await = None;
        while self.tasks.lock().await.join_next().await.is_some() {}
    }

    pub(super) async fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().await;
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Checks that a request can be understood in one way only, and names this host.
    ///
    /// # Errors
    /// Why not. It is recorded.
    pub(super) fn check(&self, request: &Request<Incoming>, target: Option<Target>) -> Result<Target, Refusal> {
        let headers = request.headers();
        let has_length = headers.contains_key(header::CONTENT_LENGTH);
        let codings: Vec<_> = headers.get_all(header::TRANSFER_ENCODING).iter().map(HeaderValue::as_bytes).collect();
        let is_chunked = !codings.is_empty();
        // Any other list would go to the host as it is, and servers differ in where such a body ends.
        let is_coded = is_chunked && !matches!(codings.as_slice(), [only] if only.eq_ignore_ascii_case(b"chunked"));
        let is_tunnel = request.method() == Method::CONNECT;
        let is_ambiguous = is_coded || is_chunked && has_length || is_tunnel && !request.body().is_end_stream();
        let hosts = headers.get_all(header::HOST).iter().count();
        let Some(target) = target.filter(|_| !is_ambiguous && hosts <= 1) else {
            let text = request.uri().to_string().chars().take(200).collect();
            return Err(self.sandbox.refused(text, Refusal::Malformed));
        };
        let default = if is_tunnel { target.port } else { self.scheme.port() };
        let named = headers
            .get(header::HOST)
            .map(|host| host.to_str().ok().and_then(|host| Target::parse(host, Some(default))));
        // Where TLS is opened nothing else says which host a request is for.
        let is_named = named.as_ref().map_or(self.scheme == Scheme::Http, |named| named.as_ref() == Some(&target));
        if is_named { Ok(target) } else { Err(self.sandbox.refuse(&target, Refusal::OtherHost)) }
    }

    /// Makes a request that was checked.
    ///
    /// # Errors
    /// Why there is no answer of the host. It is recorded.
    pub(super) async fn forward(&self, mut request: Request<Incoming>, target: Target) -> Result<Answer, Refusal> {
        let gate = &self.sandbox.gate;
        let line = RequestLine { method: request.method().as_str(), path: request.uri().path() };
        gate.admit(&target, Some(&line))?;
        if self.scheme == Scheme::Http && target.port == Scheme::Opened.port() {
            return Err(self.sandbox.refuse(&target, Refusal::NoTls));
        }
        let mut secrets = Vec::new();
        if self.scheme == Scheme::Opened {
            self.check_opened(&request, &target)?;
            secrets = gate.secrets(&target);
        }
        let mut patterns: Vec<_> = secrets.iter().flat_map(SandboxSecret::patterns).collect();
        if gate.opens(&target) {
            drop_overrides(request.headers_mut());
        }
        rewrite(&mut request, &target, self.scheme).map_err(|why| self.sandbox.refused(target.to_string(), why))?;
        // After what `Connection` names was removed, so that it cannot name what is put in.
        patterns.extend(fill(request.headers_mut(), &secrets));
        let mut host = self.host.lock().await;
        let kept = host.take().filter(|(last, (sender, _))| *last == target && !sender.is_closed());
        let mut kept = kept.and_then(|(_, (sender, activity))| Some((sender, activity.upgrade()?)));
        let (mut answer, connected) = loop {
            let is_kept = kept.is_some();
            let (mut sender, awaited) = match kept.take() {
                Some(connected) => connected,
                None => self.connect(&target).await?,
            };
            let sent = match sender.ready().await {
                Ok(()) => sender.try_send_request(request).await.map_err(|mut error| error.take_message()),
                Err(_) => Err(Some(request)),
            };
            match sent {
                Ok(answer) => break (answer, (sender, Arc::downgrade(&awaited))),
                // The host has closed the connection, and nothing of the request was sent.
                Err(Some(unsent)) if is_kept => request = unsent,
                Err(_) => return Err(awaited.fail()),
            }
        };
        *host = Some((target.clone(), connected));
        answer.extensions_mut().clear();
        let searched = if patterns.is_empty() {
            Some(answer.map(BodyExt::boxed_unsync))
        } else {
            answer::search(answer, &patterns)
        };
        let Some(mut answer) = searched else {
            *host = None;
            return Err(self.sandbox.refuse(&target, Refusal::Unsearchable));
        };
        drop_own(answer.headers_mut());
        Ok(answer)
    }

    fn check_opened(&self, request: &Request<Incoming>, target: &Target) -> Result<(), Refusal> {
        let method = request.method().as_str();
        if ["TRACE", "TRACK"].iter().any(|repeats| method.eq_ignore_ascii_case(repeats)) {
            return Err(self.sandbox.refuse(target, |target| Refusal::Repeats(target, method.to_ascii_uppercase())));
        }
        if request.headers().contains_key(header::UPGRADE) {
            return Err(self.sandbox.refuse(target, Refusal::Upgrade));
        }
        Ok(())
    }

    /// A new connection, already awaited: a host may end it before the request is sent.
    async fn connect(&self, target: &Target) -> Result<(SendRequest<Incoming>, Arc<Activity>), Refusal> {
        // Before there is a connection, which would be listed as allowed.
        let name = match self.scheme {
            Scheme::Http => None,
            Scheme::Opened => Some(self.tls_name(target)?),
        };
        let upstream = Upstream::connect(target, &self.sandbox.gate, &self.program_ended).await?;
        let awaited = Arc::clone(upstream.activity());
        let Some(name) = name else { return self.begin(upstream, awaited).await };
        let connector = TlsConnector::from(Arc::clone(&self.sandbox.trust));
        match timeout(TLS_MAX, connector.connect(name, upstream).into_fallible()).await {
            Ok(Ok(stream)) => self.begin(stream, awaited).await,
            Ok(Err((error, upstream))) => {
                let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
                let is_distrust = matches!(inner, Some(rustls::Error::InvalidCertificate(_)));
                let why = if is_distrust { Refusal::Untrusted } else { Refusal::Unreachable }(target.clone());
                upstream.refuse(why.clone());
                Err(why)
            }
            Err(_) => Err(awaited.fail()),
        }
    }

    /// The name by which TLS knows a host. One that it cannot have is recorded as refused.
    fn tls_name(&self, target: &Target) -> Result<ServerName<'static>, Refusal> {
        match &target.host {
            Host::Name(name) => ServerName::try_from(name.clone())
                .map_err(|_| self.sandbox.refused(target.to_string(), Refusal::Malformed)),
            Host::Address(address) => Ok(ServerName::from(*address)),
        }
    }

    async fn begin(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        awaited: Arc<Activity>,
    ) -> Result<(SendRequest<Incoming>, Arc<Activity>), Refusal> {
        let handshake = Builder::new().max_buf_size(HEAD_BYTES_MAX).handshake(TokioIo::new(stream)).await;
        let Ok((sender, connection)) = handshake else { return Err(awaited.fail()) };
        let idle = Activity::idle(Arc::downgrade(&awaited));
        self.spawn(async move {
            tokio::select! {
                ended = connection => {
                    if let Err(error) = ended {
                        debug!(%error, "a connection to a host ended");
                    }
                }
                () = idle => debug!("a connection to a host carried nothing for too long"),
            }
        })
        .await;
        Ok((sender, awaited))
    }
}

/// Rewrites the head of a request for its host: the path alone, our `Host`, and no header of the program's connection.
fn rewrite(request: &mut Request<Incoming>, target: &Target, scheme: Scheme) -> Result<(), Refusal> {
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = path.map(Uri::from).unwrap_or_default();
    drop_own(request.headers_mut());
    let named = if target.port == scheme.port() { target.host.to_string() } else { target.to_string() };
    let named = HeaderValue::from_str(&named).map_err(|_| Refusal::Malformed)?;
    request.headers_mut().insert(header::HOST, named);
    *request.version_mut() = http::Version::HTTP_11;
    request.extensions_mut().clear();
    Ok(())
}

/// Puts the values of secrets into their headers, and asks for an answer that can be searched; what else is to be taken
/// out of it.
fn fill(headers: &mut HeaderMap, secrets: &[SandboxSecret]) -> Vec<Pattern> {
    if secrets.is_empty() {
        return Vec::new();
    }
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.remove(header::RANGE);
    headers.remove(header::IF_RANGE);
    let mut patterns = Vec::new();
    for secret in secrets {
        let Ok(name) = HeaderName::from_bytes(secret.header().as_bytes()) else { continue };
        let http::header::Entry::Occupied(mut entry) = headers.entry(name) else { continue };
        for value in entry.iter_mut() {
            let Some(filled) = secret.fill(value.as_bytes()) else { continue };
            if let Ok(mut header) = HeaderValue::from_bytes(&filled.header) {
                // Nothing that shows headers shows it.
                header.set_sensitive(true);
                *value = header;
            }
            patterns.extend(filled.credentials);
        }
    }
    patterns
}

/// Removes the headers by which a server may take another method or path. Variables of CGI have one name for several
/// headers: what is no letter or digit becomes `_` there.
fn drop_overrides(headers: &mut HeaderMap) {
    let plain = |byte: u8| if byte.is_ascii_alphanumeric() { byte } else { b'-' };
    let is_override = |name: &&HeaderName| {
        let written: Vec<u8> = name.as_str().bytes().map(plain).collect();
        OVERRIDES.iter().any(|known| known.as_bytes() == written.as_slice())
    };
    let overrides: Vec<HeaderName> = headers.keys().filter(is_override).cloned().collect();
    for name in overrides {
        headers.remove(name);
    }
}

/// Removes what is of one connection alone.
fn drop_own(headers: &mut HeaderMap) {
    let lists = headers.get_all(header::CONNECTION).iter().filter_map(|list| list.to_str().ok());
    let named: Vec<HeaderName> =
        lists.flat_map(|list| list.split(',')).filter_map(|name| name.trim().parse().ok()).collect();
    for name in OF_CONNECTION.iter().chain(&named) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_are_removed_in_every_form_that_cgi_reads_as_one() {
        let kept = ["x-http", "x-request-id", "authorization", "x-httpmethod", "x_api_key"];
        let mut headers = HeaderMap::new();
        let forms = ["-", "_", "."].map(|mark| OVERRIDES.map(|name| name.replace('-', mark)));
        for name in forms.into_iter().flatten().chain(kept.map(str::to_owned)) {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            headers.append(name, HeaderValue::from_static("DELETE"));
        }
        drop_overrides(&mut headers);
        let left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        assert!(left.len() == kept.len() && kept.iter().all(|name| left.contains(name)), "{left:?}");
    }
}
