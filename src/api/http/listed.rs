//! Lists of protocols that know no pages in bytes: as many items as one answer holds, and whether that is all.

use axum::{
    Json,
    http::{HeaderName, HeaderValue},
    response::{IntoResponse as _, Response},
};
use serde::Serialize;
use serde_json::Value;

use crate::api::schema::json_len;

/// One answer, in bytes of JSON: about 3600 files with short names.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// What may be around the items.
const REST_BYTES: usize = 4 << 10;
/// There is more than is listed. The protocols have no member that says so.
const TRUNCATED: HeaderName = HeaderName::from_static("sandbox-truncated");

/// What is left of one answer for the items of a list.
pub(super) struct Room {
    bytes: usize,
    pub is_full: bool,
}

impl Default for Room {
    fn default() -> Self {
        Self { bytes: ANSWER_BYTES_MAX - REST_BYTES, is_full: false }
    }
}

impl Room {
    /// The room in an answer that holds this too.
    pub fn beside(other: &Value) -> Self {
        let Self { bytes, is_full } = Self::default();
        Self { bytes: bytes.saturating_sub(json_len(other)), is_full }
    }

    /// Whether an item fits. After the first that does not, none does, so that a list has no gaps.
    pub fn takes(&mut self, item: &impl Serialize) -> bool {
        let left = self.bytes.checked_sub(json_len(item) + 1).filter(|_| !self.is_full);
        self.is_full = left.is_none();
        self.bytes = left.unwrap_or_default();
        !self.is_full
    }
}

pub(super) fn answer(list: impl Serialize, is_whole: bool) -> Response {
    let truncated = (!is_whole).then(|| [(TRUNCATED, HeaderValue::from_static("true"))]);
    (truncated, Json(list)).into_response()
}
