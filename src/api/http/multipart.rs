//! Forms of the media type `multipart/form-data`, whose files are streamed.
//!
//! The parser reads all that is ready, also where what it has is enough, and keeps the head of a member until it has
//! ended. So it gets one piece of the body at a time, once it has looked at what it has, and at most [`HEAD_BYTES_MAX`]
//! in which no member begins.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    body::Bytes,
    http::{HeaderName, HeaderValue},
};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, stream};
use multer::{Constraints, Error, Field, Multipart};
use tokio::task::yield_now;

use super::RequestBody;
use crate::domain::{Code, Failure};

/// The head of a member, with what is unread before it, in bytes: more than the longest path, encoded.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// The members of a form, one after another.
pub(super) struct Form {
    members: Multipart<'static>,
    intake: Arc<Intake>,
}

/// What the parser may read of the body.
struct Intake {
    /// How many bytes may come until the next member begins.
    left: AtomicUsize,
    /// How often it got nothing since it began or got a piece: it looks at what it has when it gets nothing.
    waited: AtomicUsize,
}

impl Form {
    /// The form of a body that is announced as one.
    pub fn announced(body: RequestBody, constraints: Constraints) -> Result<Self, Failure> {
        let why = "The body is not announced as multipart/form-data.";
        let boundary = body.boundary().ok_or_else(|| Failure::new(Code::UnsupportedMediaType, why))?;
        Self::new(body, boundary, constraints)
    }

    pub fn new(body: RequestBody, boundary: String, constraints: Constraints) -> Result<Self, Failure> {
        let (_, pieces) = body.stream()?;
        Ok(Self::of(pieces, boundary, constraints))
    }

    fn of(
        pieces: impl Stream<Item = Result<Bytes, Failure>> + Send + 'static,
        boundary: String,
        constraints: Constraints,
    ) -> Self {
        let intake = Arc::new(Intake { left: AtomicUsize::new(usize::MAX), waited: AtomicUsize::new(0) });
        let shared = Arc::clone(&intake);
        let pieces = stream::try_unfold(Box::pin(pieces), move |mut pieces| {
            let intake = Arc::clone(&shared);
            async move {
                let is_full = || intake.left.load(Ordering::Relaxed) == 0;
                // For the first member it asks twice before it looks: at the limit it waits twice, so that it looks.
                while intake.waited.fetch_add(1, Ordering::Relaxed) < if is_full() { 2 } else { 1 } {
                    yield_now().await;
                }
                if is_full() {
                    return Err(too_long());
                }
                let Some(piece) = pieces.next().await.transpose()? else { return Ok(None) };
                intake.left.store(intake.left.load(Ordering::Relaxed).saturating_sub(piece.len()), Ordering::Relaxed);
                intake.waited.store(0, Ordering::Relaxed);
                Ok(Some((piece, pieces)))
            }
        });
        Self { members: Multipart::with_constraints(pieces, boundary, constraints), intake }
    }

    /// The next member. Of the one before, at most [`HEAD_BYTES_MAX`] may be unread: see [`skip`].
    pub async fn next_field(&mut self) -> Result<Option<Field<'static>>, Failure> {
        // What is left of the last piece may hold the member, and its content too.
        self.intake.waited.store(0, Ordering::Relaxed);
        self.intake.left.store(HEAD_BYTES_MAX, Ordering::Relaxed);
        let field = self.members.next_field().await.map_err(|error| broken(&error))?;
        self.intake.left.store(usize::MAX, Ordering::Relaxed);
        self.intake.waited.store(0, Ordering::Relaxed);
        let bytes = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len();
        let head = field.as_ref().map_or(0, |field| field.headers().iter().map(bytes).sum::<usize>());
        if head > HEAD_BYTES_MAX { Err(too_long()) } else { Ok(field) }
    }
}

/// A member as a text.
pub(super) async fn text(field: Field<'_>) -> Result<String, Failure> {
    field.text().await.map_err(|error| broken(&error))
}

/// A member's bytes as they arrive.
pub(super) fn pieces(
    field: impl Stream<Item = Result<Bytes, Error>> + Send,
) -> impl Stream<Item = Result<Bytes, Failure>> + Send {
    field.map_err(|error| broken(&error))
}

/// Reads the rest of a member for what follows it.
pub(super) async fn skip(mut field: Field<'static>) -> Result<(), Failure> {
    while field.chunk().await.map_err(|error| broken(&error))?.is_some() {}
    Ok(())
}

fn too_long() -> Failure {
    let why = format!("More than {HEAD_BYTES_MAX} bytes of the form are not of a file: leave out what is not needed.");
    Failure::new(Code::TooLarge, why)
}

fn broken(error: &Error) -> Failure {
    let incomplete = || Failure::new(Code::InvalidRequest, "The body is not a whole multipart form: send it again.");
    match error {
        Error::FieldSizeExceeded { limit, field_name } => {
            let name = field_name.as_deref().unwrap_or("A member of the form");
            Failure::new(Code::TooLarge, format!("{name}: it is longer than {limit} bytes: send less."))
        }
        // The body is late, broke off, or is too long.
        Error::StreamReadFailed(cause) => cause.downcast_ref::<Failure>().cloned().unwrap_or_else(incomplete),
        _ => incomplete(),
    }
}

#[cfg(test)]
mod tests {
    use multer::SizeLimit;

    use super::*;

    const PIECE_BYTES: usize = 1024;
    const MEMBER: &str = "--cut\r\nContent-Disposition: form-data; name=\"a\"; filename=\"b\"\r\n\r\n";

    /// A form of these pieces, and how many of them were read.
    fn form(pieces: Vec<Result<Bytes, Failure>>) -> (Form, Arc<AtomicUsize>) {
        let read = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&read);
        let pieces = stream::iter(pieces).inspect(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        (Form::of(pieces, "cut".to_owned(), Constraints::new()), read)
    }

    /// A beginning, a MiB in pieces, an end.
    fn long(begin: &str, end: &str) -> Vec<Result<Bytes, Failure>> {
        let middle = std::iter::repeat_n(Bytes::from(vec![b'x'; PIECE_BYTES]), 1024);
        let [begin, end] = [begin, end].map(|text| Bytes::from(text.to_owned()));
        std::iter::once(begin).chain(middle).chain([end]).map(Ok).collect()
    }

    #[tokio::test]
    async fn what_is_no_member_is_read_up_to_a_bound() {
        for (begin, members) in [("", 0), ("--cut\r\nX: ", 0), (MEMBER, 1)] {
            let (mut form, read) = form(long(begin, "\r\n--cut--\r\n"));
            for _ in 0..members {
                assert!(form.next_field().await.expect("a form").is_some(), "{begin}");
            }
            let refused = form.next_field().await.map(drop).map_err(|refused| refused.code);
            assert_eq!(refused, Err(Code::TooLarge), "{begin}");
            let read = read.load(Ordering::Relaxed);
            assert!(read <= HEAD_BYTES_MAX / PIECE_BYTES + 2, "{begin}: {read} pieces were read");
        }
    }

    #[tokio::test]
    async fn head_that_comes_at_once_is_bounded_too() {
        for (bytes, is_taken) in [(HEAD_BYTES_MAX / 2, true), (HEAD_BYTES_MAX + 1, false)] {
            let head = format!("--cut\r\nX: {}\r\n\r\nvalue\r\n--cut--\r\n", "x".repeat(bytes));
            let (mut form, _) = form(vec![Ok(head.into())]);
            let found = form.next_field().await.map(drop).map_err(|refused| refused.code);
            assert_eq!(found, if is_taken { Ok(()) } else { Err(Code::TooLarge) }, "{bytes}");
        }
    }

    #[tokio::test]
    async fn long_member_is_read_piece_by_piece_or_skipped() {
        for is_skipped in [false, true] {
            let (mut form, read) = form(long(MEMBER, &format!("\r\n{MEMBER}last\r\n--cut--\r\n")));
            let mut field = form.next_field().await.expect("a form").expect("a member");
            assert!(field.chunk().await.expect("a piece").is_some());
            let read = read.load(Ordering::Relaxed);
            assert!(read <= 3, "{read} pieces were read for one");
            if is_skipped {
                skip(field).await.expect("the rest");
            } else {
                let rest: Vec<_> = pieces(field).try_collect().await.expect("the rest");
                let rest = rest.iter().map(Bytes::len).sum::<usize>();
                assert!(rest > 1000 * PIECE_BYTES, "{rest}");
            }
            let last = form.next_field().await.expect("a form").expect("the last member");
            assert_eq!(text(last).await.as_deref(), Ok("last"));
            assert!(form.next_field().await.expect("its end").is_none());
        }
    }

    #[tokio::test]
    async fn member_that_is_too_long_is_named() {
        let limits = Constraints::new().size_limit(SizeLimit::new().for_field("a", 8));
        let whole = format!("{MEMBER}more than that\r\n--cut--\r\n");
        let mut form = Form::of(stream::iter([Ok(whole.into())]), "cut".to_owned(), limits);
        let field = form.next_field().await.expect("a form").expect("a member");
        let refused = text(field).await.expect_err("it is too long");
        assert_eq!((refused.code, &*refused.message), (Code::TooLarge, "a: it is longer than 8 bytes: send less."));
    }

    #[tokio::test]
    async fn members_that_came_in_one_piece_are_taken_before_more_is_read() {
        let many = format!("{MEMBER}value\r\n").repeat(100);
        let (mut form, read) = form(long(&format!("{many}{MEMBER}"), "\r\n--cut--\r\n"));
        for _ in 0..100 {
            let field = form.next_field().await.expect("a form").expect("a member");
            assert_eq!(text(field).await.as_deref(), Ok("value"));
        }
        let read = read.load(Ordering::Relaxed);
        assert!(read <= 2, "{read} pieces were read for what is in one");
    }

    #[tokio::test]
    async fn member_that_begins_in_a_long_piece_is_taken() {
        let whole = format!("{MEMBER}{}\r\n--cut--\r\n", "x".repeat(2 * HEAD_BYTES_MAX));
        for at in [0, 1, 4, 20] {
            let pieces = [&whole[..at], &whole[at..]].into_iter().filter(|piece| !piece.is_empty());
            let (mut form, _) = form(pieces.map(|piece| Ok(Bytes::from(piece.to_owned()))).collect());
            let field = form.next_field().await.expect("a form").expect("a member");
            assert_eq!(text(field).await.expect("its text").len(), 2 * HEAD_BYTES_MAX, "cut at {at}");
        }
    }

    #[tokio::test]
    async fn failure_of_the_body_is_that_of_the_form() {
        let late = || Err(Failure::new(Code::BodyTimeout, "late"));
        let (mut head, _) = form(vec![Ok("--cut\r\nX: ".into()), late()]);
        assert_eq!(head.next_field().await.map(drop).map_err(|failure| failure.code), Err(Code::BodyTimeout));
        let (mut value, _) = form(vec![Ok(MEMBER.into()), Ok("x".into()), late()]);
        let field = value.next_field().await.expect("a form").expect("a member");
        assert_eq!(text(field).await.map_err(|failure| failure.code), Err(Code::BodyTimeout));
        let (mut cut, _) = form(vec![Ok(MEMBER.into())]);
        let field = cut.next_field().await.expect("a form").expect("a member");
        assert_eq!(skip(field).await.map_err(|failure| failure.code), Err(Code::InvalidRequest));
    }
}
