//! Bodies of requests: bounded in bytes and in time, checked for their media type, and drained when an answer does not
//! need them.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Error,
    body::{Body, Bytes, HttpBody},
    extract::Request,
    http::{HeaderMap, HeaderValue, header},
    middleware::Next,
    response::Response,
};
use futures_util::{Stream, stream};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::{Map, Value};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::{Instant, timeout, timeout_at},
};

use super::{json, single};
use crate::{
    api::schema::parse::by_size,
    domain::{Code, Failure, Principal},
    services::shares::Shares,
};

/// Values in one JSON body, keys and values of objects counted one each.
const VALUES_MAX: usize = 10_000;

/// What a long body gains time by, in bytes a second.
const PACE_BYTES_A_S: u64 = 64 << 10;

/// How long the sender of a long body may pause, however much time it has gained.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// The bytes that one permit stands for.
const UNIT_BYTES: usize = 1024;

/// What a client has to send of a body in each window while less than half of the memory for bodies, or of its owner's
/// part, is free.
const WINDOW: Duration = Duration::from_secs(5);
const WINDOW_BYTES_MIN: usize = 40 << 10;

/// How much of an unread body is drained, for how long, and how long the client may pause.
const DRAIN_BYTES_MAX: usize = 16 << 20;
const DRAIN_MAX: Duration = Duration::from_secs(5);
const DRAIN_PAUSE_MAX: Duration = Duration::from_millis(200);

/// Reads and discards what a handler left of a body before the answer goes out. Otherwise the connection is reset
/// while the client still writes, and a client that reads only afterwards never sees the answer.
pub async fn drain_unread(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let (head, body) = request.into_parts();
    // Such a client sends nothing before the first read, which asks it to.
    let waits = head.headers.contains_key(header::EXPECT);
    let (to, mut unread) = oneshot::channel();
    let body = Body::new(Returned { body, polled: !waits, to: Some(to) });
    let response = next.run(Request::from_parts(head, body)).await;
    if let Ok(body) = unread.try_recv()
        && body.size_hint().lower() <= DRAIN_BYTES_MAX as u64
    {
        let mut body = Limited::new(body, DRAIN_BYTES_MAX);
        let drain = async { while matches!(timeout(DRAIN_PAUSE_MAX, body.frame()).await, Ok(Some(Ok(_)))) {} };
        // A client that sends more, or for longer, may be cut off.
        drop(timeout(DRAIN_MAX, drain).await);
    }
    response
}

/// A body that is sent back when it is dropped before its end.
struct Returned {
    body: Body,
    /// Whether the client is sending.
    polled: bool,
    to: Option<oneshot::Sender<Body>>,
}

impl HttpBody for Returned {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        self.polled = true;
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.to = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Returned {
    fn drop(&mut self) {
        if let Some(to) = self.to.take().filter(|_| self.polled && !self.body.is_end_stream()) {
            drop(to.send(std::mem::take(&mut self.body)));
        }
    }
}

tokio::task_local! {
    /// Whose request a task serves. Bodies are read in many functions, none of which decides whose memory they take.
    static SENDER: Principal;
}

/// Serves a request whose body counts for this owner.
pub async fn counted_for<T>(owner: Principal, serving: impl Future<Output = T>) -> T {
    SENDER.scope(owner, serving).await
}

/// How bodies are read, and the memory that they share. A clone shares it too.
#[derive(Debug, Clone)]
pub struct Bodies {
    bytes_max: usize,
    read_max: Duration,
    /// A permit for each started [`UNIT_BYTES`].
    room: Arc<Semaphore>,
    units: usize,
    /// The same for each owner: half of it, and at least one of the largest bodies.
    shares: Arc<Shares<Principal>>,
}

/// What one body has of the memory for all, or for those of its owner.
struct Room {
    held: OwnedSemaphorePermit,
    /// How much there is in all.
    units: usize,
}

impl Room {
    fn new(all: &Arc<Semaphore>, units: usize) -> Result<Self, Failure> {
        Ok(Self { held: take(all, 0)?, units })
    }

    fn is_short(&self) -> bool {
        self.held.semaphore().available_permits() < self.units / 2
    }

    fn grow_to(&mut self, units: usize) -> Result<(), Failure> {
        let more = units.saturating_sub(self.held.num_permits());
        let more = take(self.held.semaphore(), more)?;
        self.held.merge(more);
        Ok(())
    }
}

fn take(all: &Arc<Semaphore>, units: usize) -> Result<OwnedSemaphorePermit, Failure> {
    let taken = u32::try_from(units).ok().and_then(|units| Arc::clone(all).try_acquire_many_owned(units).ok());
    let why = "Too much is being sent to the server at once: send it again in a moment.";
    taken.ok_or_else(|| Failure::new(Code::QueueFull, why))
}

/// A body, and its part of the memory until the last reference to it is dropped.
struct AccountedBody {
    bytes: Bytes,
    _rooms: Vec<Room>,
}

impl AsRef<[u8]> for AccountedBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Bodies {
    /// The largest body, in bytes; how long a client may take to send it; and the memory of all bodies together, in
    /// bytes, which is at least one of the largest.
    pub fn new(bytes_max: usize, read_max: Duration, together_bytes_max: usize) -> Self {
        let units = |bytes: usize| bytes.div_ceil(UNIT_BYTES).min(Semaphore::MAX_PERMITS);
        let (largest, units) = (units(bytes_max), units(together_bytes_max.max(bytes_max)));
        let shares = Arc::new(Shares::new(largest.max(units / 2)));
        Self { bytes_max, read_max, room: Arc::new(Semaphore::new(units)), units, shares }
    }

    /// The largest, in bytes.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// The same room for smaller ones.
    #[must_use]
    pub fn at_most(&self, bytes_max: usize) -> Self {
        Self { bytes_max: self.bytes_max.min(bytes_max), ..self.clone() }
    }

    /// A whole body. It takes room as it arrives, so that announcing much and sending nothing blocks no other client.
    ///
    /// # Errors
    /// [`Code::TooLarge`], [`Code::BodyTimeout`], [`Code::UnsupportedMediaType`] for a compressed one,
    /// [`Code::InvalidRequest`] for one that breaks off, [`Code::QueueFull`] when too many are here at once.
    pub async fn read(&self, headers: &HeaderMap, body: Body) -> Result<Bytes, Failure> {
        check_uncompressed(headers)?;
        let max = self.bytes_max;
        let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        if announced.is_some_and(|length: u64| length > max as u64) {
            return Err(self.too_large());
        }
        let read = timeout(self.read_max, self.collect(Limited::new(body, max))).await;
        read.unwrap_or_else(|_| Err(late(self.read_max)))
    }

    /// The pieces of a body of any length, and its announced length. They have to come at no less than
    /// [`PACE_BYTES_A_S`] after the time for a short body, and with no pause longer than [`PAUSE_MAX`]. Only the time
    /// in which the next piece is waited for counts.
    ///
    /// # Errors
    /// [`Code::UnsupportedMediaType`]; the stream ends with [`Code::BodyTimeout`] or [`Code::InvalidRequest`].
    pub fn stream(
        &self,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<(Option<u64>, impl Stream<Item = Result<Bytes, Failure>> + Send + use<>), Failure> {
        check_uncompressed(headers)?;
        let announced = body.size_hint().exact();
        let read_max = self.read_max;
        let begin = (body, 0_u64, Duration::ZERO);
        let pieces = stream::try_unfold(begin, move |(mut body, received, waited)| async move {
            let left = (read_max + Duration::from_secs(received / PACE_BYTES_A_S)).saturating_sub(waited);
            let from = Instant::now();
            let until = from + left.min(PAUSE_MAX);
            loop {
                let frame = timeout_at(until, body.frame()).await;
                let frame = frame.map_err(|_| if left > PAUSE_MAX { paused() } else { late(read_max) });
                let Some(frame) = frame? else { return Ok(None) };
                let Ok(piece) = frame.map_err(|_| broken())?.into_data() else { continue };
                if piece.is_empty() {
                    continue;
                }
                let received = received + piece.len() as u64;
                return Ok(Some((piece, (body, received, waited + from.elapsed()))));
            }
        });
        Ok((announced, pieces))
    }

    async fn collect(&self, mut body: Limited<Body>) -> Result<Bytes, Failure> {
        let share = SENDER.try_with(|owner| (self.shares.of(owner), self.shares.permits)).ok();
        let rooms = share.into_iter().chain([(Arc::clone(&self.room), self.units)]);
        let rooms: Result<Vec<_>, _> = rooms.map(|(all, units)| Room::new(&all, units)).collect();
        let (mut rooms, mut length, mut pieces) = (rooms?, 0_usize, Vec::new());
        let (mut window, mut length_before) = (Instant::now() + WINDOW, 0);
        loop {
            let Ok(frame) = timeout_at(window, body.frame()).await else {
                if length < length_before + WINDOW_BYTES_MIN && rooms.iter().any(Room::is_short) {
                    let why = "The body arrives slowly while the server has little room for bodies: send it faster.";
                    return Err(Failure::new(Code::BodyTimeout, why));
                }
                (window, length_before) = (Instant::now() + WINDOW, length);
                continue;
            };
            let Some(frame) = frame else { break };
            let frame =
                frame.map_err(|error| if error.is::<LengthLimitError>() { self.too_large() } else { broken() })?;
            let Ok(piece) = frame.into_data() else { continue };
            length += piece.len();
            for room in &mut rooms {
                room.grow_to(length.div_ceil(UNIT_BYTES))?;
            }
            pieces.push(piece);
        }
        let bytes = if pieces.len() == 1 { pieces.remove(0) } else { pieces.concat().into() };
        Ok(Bytes::from_owner(AccountedBody { bytes, _rooms: rooms }))
    }

    fn too_large(&self) -> Failure {
        let max = self.bytes_max;
        let why = format!("The body is larger than {max} bytes: send less, or write the data in several files.");
        Failure::new(Code::TooLarge, why)
    }

    /// A body that is one JSON object.
    ///
    /// # Errors
    /// As [`Self::read`]; [`Code::UnsupportedMediaType`] when it is not announced as JSON, [`Code::InvalidRequest`]
    /// when it is none, or holds a key twice.
    pub async fn json(&self, headers: &HeaderMap, body: Body) -> Result<(Map<String, Value>, Bytes), Failure> {
        check_is_json(headers)?;
        let bytes = self.read(headers, body).await?;
        let text = bytes.clone();
        let value = by_size(bytes.len(), move || json::read(&text, VALUES_MAX)).await;
        match value.map_err(|error| Failure::new(Code::InvalidRequest, json::complaint(&error)))? {
            Value::Object(members) => Ok((members, bytes)),
            _ => Err(Failure::new(Code::InvalidRequest, "The body is not one JSON object: send an object.")),
        }
    }
}

fn broken() -> Failure {
    Failure::new(Code::InvalidRequest, "The body broke off: send it again.")
}

fn late(read_max: Duration) -> Failure {
    Failure::new(Code::BodyTimeout, format!("The body took longer than {} s: send it faster.", read_max.as_secs()))
}

fn paused() -> Failure {
    let why = format!("Nothing of the body came for {} s: send it without such a pause.", PAUSE_MAX.as_secs());
    Failure::new(Code::BodyTimeout, why)
}

/// The media type of a body in lower case, without parameters; empty when none is announced.
///
/// # Errors
/// [`Code::InvalidRequest`] when two are announced.
pub fn media_type(headers: &HeaderMap) -> Result<String, Failure> {
    let kind = single(headers, &header::CONTENT_TYPE)?.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    Ok(kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}

pub(super) fn check_is_json(headers: &HeaderMap) -> Result<(), Failure> {
    if media_type(headers)? == "application/json" {
        return Ok(());
    }
    let why = "The body is not announced as JSON: send the header `Content-Type: application/json`.";
    Err(Failure::new(Code::UnsupportedMediaType, why))
}

/// Checks that a body is not compressed.
pub(super) fn check_uncompressed(headers: &HeaderMap) -> Result<(), Failure> {
    let is_identity = |value: &HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity");
    if headers.get_all(header::CONTENT_ENCODING).iter().all(is_identity) {
        return Ok(());
    }
    let why = "The body is compressed: send it as it is, without Content-Encoding.";
    Err(Failure::new(Code::UnsupportedMediaType, why))
}

#[cfg(test)]
mod tests;
