//! Files of a session: listed, looked at, downloaded, deleted. A file is found by its id among those of its session.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, Method},
    response::Response,
};
use serde_json::{Value, json};

use super::{file_id, session};
use crate::{
    api::http::{Answer, error::ApiError, files as downloads, parts::Path},
    domain::{
        error::{Code, Failure},
        file::FileEntry,
        id::ConversationId,
        owner::{ConversationKey, Principal},
        text::rfc3339,
    },
    services::files::Files,
};

/// The file with this id.
///
/// # Errors
/// [`Code::FileNotFound`].
pub(super) async fn find(files: &Files, conversation: &ConversationKey, id: &str) -> Result<FileEntry, Failure> {
    let found = files.select(conversation, |file| file_id(&file.path) == id).await?.pop();
    found.ok_or_else(|| Failure::new(Code::FileNotFound, "There is no such file in this session."))
}

type Place = Path<(String, String)>;

async fn at(files: &Files, who: Principal, place: Place) -> Result<(ConversationKey, FileEntry), Failure> {
    let Path((id, file)) = place;
    let conversation = ConversationKey::new(who, session(&id)?);
    let entry = find(files, &conversation, &file).await?;
    Ok((conversation, entry))
}

/// The bytes of a file.
pub(super) async fn download(
    State(files): State<Arc<Files>>,
    who: Principal,
    place: Place,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let (conversation, entry) = at(&files, who, place).await?;
    let download = files.open(&conversation, &entry.path).await?;
    Ok(downloads::present_to(&method, &headers, download))
}

/// What is known of a file. LibreChat asks before it names a file, and uploads what is gone again.
pub(super) async fn object(State(files): State<Arc<Files>>, who: Principal, place: Place) -> Answer<Value> {
    let (conversation, entry) = at(&files, who, place).await?;
    Ok(Json(shown(&conversation.id, &entry)))
}

/// The files of a session; of one that is not there none.
pub(super) async fn list(
    State(files): State<Arc<Files>>,
    who: Principal,
    Path(id): Path<String>,
) -> Answer<Vec<Value>> {
    let conversation = ConversationKey::new(who, session(&id)?);
    let entries = files.select(&conversation, |_| true).await?;
    Ok(Json(entries.iter().map(|entry| shown(&conversation.id, entry)).collect()))
}

/// Deletes a file.
pub(super) async fn remove(State(files): State<Arc<Files>>, who: Principal, place: Place) -> Answer<Value> {
    let (conversation, entry) = at(&files, who, place).await?;
    files.delete(&conversation, &entry.path, None).await?;
    Ok(Json(json!({"message": "success"})))
}

fn shown(session: &ConversationId, entry: &FileEntry) -> Value {
    let id = file_id(&entry.path);
    json!({
        // Older versions look a file up by this name.
        "name": format!("{session}/{id}"),
        "id": id,
        "session": session.as_str(),
        "size": entry.size,
        "lastModified": rfc3339(entry.modified_unix_s),
        "contentType": entry.media_type(),
        "metadata": {"original-filename": entry.path.text()},
    })
}
