//! Sends a call to the engine's socket, each on a connection of its own, and hands the answer back as it comes.
//!
//! ```text
//! send, attach ── one task for the connection to the engine: ends with it
//! attach       ── one task that copies both ways: ends when either side is closed
//! ```

use std::{
    path::Path,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::{body::Incoming, client::conn::http1::handshake, upgrade};
use hyper_util::rt::TokioIo;
use tokio::{io::copy_bidirectional, net::UnixStream};
use tracing::debug;

use super::rules::{Asked, Denied};

/// A body of ours or of the engine's.
#[derive(Debug)]
pub(super) enum Answer {
    Ours(Full<Bytes>),
    Engines(Incoming),
}

impl Answer {
    pub(super) fn empty() -> Self {
        Self::Ours(Full::default())
    }
}

impl From<Vec<u8>> for Answer {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Ours(Full::new(bytes.into()))
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match self.get_mut() {
            Self::Ours(body) => Pin::new(body).poll_frame(context).map_err(|never| match never {}),
            Self::Engines(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Ours(body) => body.is_end_stream(),
            Self::Engines(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Ours(body) => body.size_hint(),
            Self::Engines(body) => body.size_hint(),
        }
    }
}

/// A refusal in the engine's own form.
pub(super) fn refusal(status: StatusCode, why: &str) -> Response<Answer> {
    let body = serde_json::json!({"message": format!("engine-proxy: {why}")}).to_string();
    let mut response = Response::new(body.into_bytes().into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A call with an answer.
pub(super) async fn send(socket: &Path, asked: &Asked, body: Answer) -> Result<Response<Answer>, Denied> {
    let mut request = Request::new(body);
    write_head(&mut request, asked)?;
    request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    exchange(socket, request).await
}

/// A call that becomes a stream in both directions.
pub(super) async fn attach(
    socket: &Path,
    asked: &Asked,
    mut from: Request<Incoming>,
) -> Result<Response<Answer>, Denied> {
    let mut request = Request::new(Answer::empty());
    write_head(&mut request, asked)?;
    let headers = request.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("tcp"));
    let mut answer = exchange(socket, request).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(answer);
    }
    let (client, engine) = (upgrade::on(&mut from), upgrade::on(&mut answer));
    tokio::spawn(async move {
        let Ok((client, engine)) = tokio::try_join!(client, engine) else { return };
        let (mut client, mut engine) = (TokioIo::new(client), TokioIo::new(engine));
        if let Err(error) = copy_bidirectional(&mut client, &mut engine).await {
            debug!(%error, "an attached stream ended badly");
        }
    });
    Ok(answer)
}

fn write_head(request: &mut Request<Answer>, asked: &Asked) -> Result<(), Denied> {
    *request.method_mut() = asked.method();
    *request.uri_mut() = asked.target().parse().map_err(|_| Denied::new("the call cannot be written"))?;
    request.headers_mut().insert(header::HOST, HeaderValue::from_static("engine"));
    Ok(())
}

async fn exchange(socket: &Path, request: Request<Answer>) -> Result<Response<Answer>, Denied> {
    let away = |error: &dyn std::fmt::Display| Denied {
        status: StatusCode::BAD_GATEWAY,
        why: format!("the engine does not answer: {error}"),
    };
    let stream = UnixStream::connect(socket).await.map_err(|error| away(&error))?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| away(&error))?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            debug!(%error, "a connection to the engine ended badly");
        }
    });
    let answer = sender.send_request(request).await.map_err(|error| away(&error))?;
    Ok(answer.map(Answer::Engines))
}
