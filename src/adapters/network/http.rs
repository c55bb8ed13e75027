//! The HTTP proxy: tunnels (`CONNECT`), and requests with the whole URL, which go to the host as requests of ours. No
//! byte of a head is copied: both sides are parsed and written anew.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{Either, Full};
use hyper::{
    body::Incoming,
    client::conn::http1::{SendRequest, handshake},
    ext::ReasonPhrase,
    server::conn::http1,
    service::service_fn,
    upgrade,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{sync::Mutex, task::JoinSet};
use tracing::debug;

use super::{
    channel::Client,
    tunnel,
    upstream::{Upstream, refused},
};
use crate::{
    domain::network::{Refusal, Target},
    ports::network::Gate,
};

/// How long the head of a request may take, and how long it may be.
const HEAD_MAX: Duration = Duration::from_mins(5);
const HEAD_BYTES_MAX: usize = 64 << 10;
const HTTP_PORT: u16 = 80;

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

type Answer = Response<Either<Incoming, Full<Bytes>>>;

/// One connection of a client.
struct Proxy {
    gate: Arc<dyn Gate>,
    /// The host of the last request, for the next one.
    host: Mutex<Option<(Target, SendRequest<Incoming>)>>,
    tasks: Mutex<JoinSet<()>>,
}

/// Serves the requests of one client until it closes the connection or makes it a tunnel.
pub(super) async fn serve(client: Client, gate: Arc<dyn Gate>) {
    let proxy = Arc::new(Proxy { gate, host: Mutex::default(), tasks: Mutex::default() });
    let service = service_fn(|request| {
        let proxy = Arc::clone(&proxy);
        async move { Ok::<_, Infallible>(proxy.answer(request).await.unwrap_or_else(|refusal| refuse(&refusal))) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX).max_buf_size(HEAD_BYTES_MAX).half_close(true);
    let connection = builder.serve_connection(TokioIo::new(client), service).with_upgrades();
    if let Err(error) = connection.await {
        debug!(%error, "a program's connection to the proxy ended");
    }
    // No further request uses the host's connection; a tunnel goes on after the connection that it was.
    *proxy.host.lock().await = None;
    while proxy.tasks.lock().await.join_next().await.is_some() {}
}

impl Proxy {
    async fn answer(&self, request: Request<Incoming>) -> Result<Answer, Refusal> {
        let headers = request.headers();
        let has_length = headers.contains_key(header::CONTENT_LENGTH);
        let is_chunked = headers.contains_key(header::TRANSFER_ENCODING);
        let is_tunnel = request.method() == Method::CONNECT;
        let is_ambiguous = is_chunked && (has_length || is_tunnel);
        let hosts = headers.get_all(header::HOST).iter().count();
        let authority = request.uri().authority().map(http::uri::Authority::as_str);
        let default = if is_tunnel { None } else { Some(HTTP_PORT) };
        let is_http = is_tunnel || request.uri().scheme_str() == Some("http");
        let target = authority.filter(|_| is_http).and_then(|text| Target::parse(text, default));
        let Some(target) = target.filter(|_| !is_ambiguous && hosts <= 1) else {
            let text = request.uri().to_string().chars().take(200).collect();
            self.gate.over(refused(text, Refusal::Malformed));
            return Err(Refusal::Malformed);
        };
        let named = headers
            .get(header::HOST)
            .map(|host| host.to_str().ok().and_then(|host| Target::parse(host, default.or(Some(target.port)))));
        if named.is_some_and(|named| named.as_ref() != Some(&target)) {
            let refusal = Refusal::OtherHost(target.clone());
            self.gate.over(refused(target.to_string(), refusal.clone()));
            return Err(refusal);
        }
        if is_tunnel { self.tunnel(request, target).await } else { self.forward(request, target).await }
    }

    async fn tunnel(&self, request: Request<Incoming>, target: Target) -> Result<Answer, Refusal> {
        let upstream = Upstream::connect(&target, &self.gate).await?;
        self.spawn(async move {
            match upgrade::on(request).await {
                Ok(client) => tunnel::carry(TokioIo::new(client), upstream, &target).await,
                Err(error) => debug!(%error, "a tunnel was not begun"),
            }
        })
        .await;
        Ok(Response::new(Either::Right(Full::default())))
    }

    async fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().await;
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    async fn forward(&self, request: Request<Incoming>, target: Target) -> Result<Answer, Refusal> {
        let unreachable = || Refusal::Unreachable(target.clone());
        let mut host = self.host.lock().await;
        let kept = host.take().filter(|(last, sender)| *last == target && !sender.is_closed());
        let mut sender = if let Some((_, sender)) = kept {
            sender
        } else {
            let upstream = Upstream::connect(&target, &self.gate).await?;
            let (sender, connection) = handshake(TokioIo::new(upstream)).await.map_err(|_| unreachable())?;
            self.spawn(async move {
                if let Err(error) = connection.await {
                    debug!(%error, "a connection to a host ended");
                }
            })
            .await;
            sender
        };
        sender.ready().await.map_err(|_| unreachable())?;
        let (mut head, body) = request.into_parts();
        head.uri = origin(&head.uri);
        drop_own(&mut head.headers);
        let named = if target.port == HTTP_PORT { target.host.to_string() } else { target.to_string() };
        head.headers.insert(header::HOST, HeaderValue::from_str(&named).map_err(|_| Refusal::Malformed)?);
        head.version = http::Version::HTTP_11;
        head.extensions.clear();
        let answer = sender.send_request(Request::from_parts(head, body)).await.map_err(|_| unreachable())?;
        *host = Some((target, sender));
        let (mut head, body) = answer.into_parts();
        drop_own(&mut head.headers);
        head.extensions.clear();
        Ok(Response::from_parts(head, Either::Left(body)))
    }
}

/// The path and the query of a URL.
fn origin(uri: &Uri) -> Uri {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    path.parse().unwrap_or_else(|_| Uri::from_static("/"))
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

/// Many clients show nothing of a refusal but the reason phrase.
fn refuse(refusal: &Refusal) -> Answer {
    let why = refusal.to_string();
    let mut answer = Response::new(Either::Right(Full::from(format!("{why}\n"))));
    *answer.status_mut() = match refusal {
        Refusal::Malformed | Refusal::OtherHost(_) => StatusCode::BAD_REQUEST,
        Refusal::TooMany => StatusCode::SERVICE_UNAVAILABLE,
        Refusal::NotFound(_) | Refusal::Unreachable(_) => StatusCode::BAD_GATEWAY,
        _ => StatusCode::FORBIDDEN,
    };
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer.headers_mut().insert("x-sandbox-refusal", HeaderValue::from_static(refusal.word()));
    // A host's name is ASCII, so the reason is always one.
    if let Ok(reason) = ReasonPhrase::try_from(why.into_bytes()) {
        answer.extensions_mut().insert(reason);
    }
    answer
}
