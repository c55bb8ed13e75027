//! Sends a call to the engine's socket, each on a connection of its own, and streams the answer back.
//!
//! ```text
//! send, attach ── one task for the connection to the engine: ends with it
//! attach       ── one task that copies both ways: ends when both sides are closed, or its set is dropped
//! ```

use std::{error::Error, path::Path, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, client::conn::http1, upgrade};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{io::copy_bidirectional, net::UnixStream, task::JoinSet};
use tracing::{debug, warn};

use super::{
    HEAD_BYTES_MAX,
    rules::{Allowed, Denied},
};

/// A body of ours or of the engine's.
pub(super) type Body = UnsyncBoxBody<Bytes, BodyError>;
pub(super) type BodyError = Box<dyn Error + Send + Sync>;

/// The attached streams of a connection.
pub(super) type Attached = Arc<Mutex<JoinSet<()>>>;

pub(super) fn body(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A refusal in the engine's own form.
pub(super) fn refusal(denied: &Denied) -> Response<Body> {
    // Only a compromised server, or another version of it, makes such a request.
    warn!(why = %denied.why, "a request was not passed on");
    let message = serde_json::json!({"message": format!("engine-proxy: {}", denied.why)});
    json(denied.status, body(message.to_string()))
}

pub(super) fn json(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A call with an answer.
pub(super) async fn send(socket: &Path, allowed: &Allowed, body: Body) -> Result<Response<Body>, Denied> {
    let mut request = Request::new(body);
    write_head(&mut request, allowed)?;
    request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    exchange(socket, request).await
}

/// A call that becomes a stream in both directions, in a task among `attached`.
pub(super) async fn attach(
    socket: &Path,
    allowed: &Allowed,
    mut from: Request<Incoming>,
    attached: &Attached,
) -> Result<Response<Body>, Denied> {
    let mut request = Request::new(body(Bytes::new()));
    write_head(&mut request, allowed)?;
    let headers = request.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("tcp"));
    let mut answer = exchange(socket, request).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(answer);
    }
    let (client, engine) = (upgrade::on(&mut from), upgrade::on(&mut answer));
    attached.lock().spawn(async move {
        let Ok((client, engine)) = tokio::try_join!(client, engine) else { return };
        let (mut client, mut engine) = (TokioIo::new(client), TokioIo::new(engine));
        if let Err(error) = copy_bidirectional(&mut client, &mut engine).await {
            debug!(%error, "an attached stream ended badly");
        }
    });
    Ok(answer)
}

fn write_head(request: &mut Request<Body>, allowed: &Allowed) -> Result<(), Denied> {
    *request.method_mut() = allowed.method.clone();
    *request.uri_mut() = allowed.target().parse().map_err(|_| Denied::new("the call cannot be written"))?;
    request.headers_mut().insert(header::HOST, HeaderValue::from_static("engine"));
    Ok(())
}

async fn exchange(socket: &Path, request: Request<Body>) -> Result<Response<Body>, Denied> {
    let stream = UnixStream::connect(socket).await.map_err(Denied::unavailable)?;
    // The usual buffer holds 400 KiB of an answer for each client that does not read.
    let mut http = http1::Builder::new();
    let handshake = http.max_buf_size(HEAD_BYTES_MAX).handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.map_err(Denied::unavailable)?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            debug!(%error, "a connection to the engine ended badly");
        }
    });
    let answer = sender.send_request(request).await.map_err(Denied::unavailable)?;
    Ok(answer.map(|answer| answer.map_err(Into::into).boxed_unsync()))
}
