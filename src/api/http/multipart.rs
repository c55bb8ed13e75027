//! Forms of the media type `multipart/form-data`, whose files are streamed.

use axum::body::Bytes;
use futures_util::{Stream, stream};
use multer::{Constraints, Error, Field, Multipart};

use super::RequestBody;
use crate::domain::{Code, Failure};

/// The members of a form, one after another.
pub(super) struct Form(Multipart<'static>);

impl Form {
    /// The form of a body that is announced as one.
    pub fn announced(body: RequestBody, constraints: Constraints) -> Result<Self, Failure> {
        let why = "The body is not announced as multipart/form-data.";
        let boundary = body.boundary().ok_or_else(|| Failure::new(Code::UnsupportedMediaType, why))?;
        Self::new(body, boundary, constraints)
    }

    pub fn new(body: RequestBody, boundary: String, constraints: Constraints) -> Result<Self, Failure> {
        let (_, pieces) = body.stream()?;
        Ok(Self(Multipart::with_constraints(pieces, boundary, constraints)))
    }

    pub async fn next_field(&mut self) -> Result<Option<Field<'static>>, Failure> {
        self.0.next_field().await.map_err(|error| broken(&error))
    }
}

/// A member as a text.
pub(super) async fn text(field: Field<'_>) -> Result<String, Failure> {
    field.text().await.map_err(|error| broken(&error))
}

/// A member's bytes as they arrive.
pub(super) fn pieces(field: Field<'_>) -> impl Stream<Item = Result<Bytes, Failure>> + Send {
    stream::unfold(field, |mut field| async {
        let piece = field.chunk().await.map_err(|error| broken(&error)).transpose()?;
        Some((piece, field))
    })
}

fn broken(error: &Error) -> Failure {
    match error {
        Error::FieldSizeExceeded { .. } => Failure::new(Code::TooLarge, "A member of the form is too long."),
        _ => Failure::new(Code::InvalidRequest, "The body is not a whole multipart form: send it again."),
    }
}
