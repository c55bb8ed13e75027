//! Lists of protocols that know no pages in bytes: as many items as one answer holds, and whether that is all.

use std::collections::{BTreeMap, btree_map::Entry};

use axum::{
    Json,
    http::{HeaderName, HeaderValue},
    response::{IntoResponse as _, Response},
};
use serde::Serialize;
use serde_json::Value;

use crate::{
    api::schema::json_len,
    domain::{ConversationKey, Failure, FileEntry, SafePath},
    services::files::Files,
};

/// One answer, in bytes of JSON: about 3600 files with short names.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// What may be around the items.
const REST_BYTES: usize = 4 << 10;
/// There is more than is listed. The protocols have no member that says so.
pub(super) const TRUNCATED: HeaderName = HeaderName::from_static("sandbox-truncated");

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

/// What is in a folder of a conversation, to a depth and as far as there is room, and whether that is all. `shown` gets
/// the path of a file and the file, or the path of a folder.
pub(super) async fn folder(
    files: &Files,
    key: &ConversationKey,
    folder: Option<&SafePath>,
    depth: usize,
    mut room: Room,
    shown: impl Fn(&SafePath, Option<&FileEntry>) -> Value,
) -> Result<(Vec<Value>, bool), Failure> {
    let above = folder.map_or(0, |folder| folder.components().count());
    let mut found = BTreeMap::new();
    let visit = |file: FileEntry| {
        for path in file.path.folders().chain([file.path.clone()]).skip(above).take(depth) {
            if let Entry::Vacant(entry) = found.entry(path) {
                let item = shown(entry.key(), Some(&file).filter(|file| file.path == *entry.key()));
                if room.takes(&item) {
                    entry.insert(item);
                }
            }
        }
    };
    let is_whole = files.visit(key, folder, visit).await? && !room.is_full;
    Ok((found.into_values().collect(), is_whole))
}
