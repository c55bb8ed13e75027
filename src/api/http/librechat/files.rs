//! Files of a session: listed, looked at, downloaded, deleted. A file is found by its id among those of its session.

use axum::Json;
use serde_json::{Value, json};

use super::{file_id, session};
use crate::{
    api::http::{
        Answer, Reply, files as downloads,
        listed::{self, Room},
        parts::{ApiCall, Path},
    },
    domain::{
        error::{Code, Failure},
        file::FileEntry,
        id::ConversationId,
        owner::ConversationKey,
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

async fn at(call: &ApiCall, place: Place) -> Result<(ConversationKey, FileEntry), Failure> {
    let Path((id, file)) = place;
    let conversation = call.key(session(&id)?);
    let entry = find(&call.parts.files, &conversation, &file).await?;
    Ok((conversation, entry))
}

/// The bytes of a file.
pub(super) async fn download(call: ApiCall, place: Place) -> Reply {
    let (conversation, entry) = at(&call, place).await?;
    let download = call.parts.files.open(&conversation, &entry.path).await?;
    Ok(downloads::present_to(&call.method, &call.headers, download))
}

/// What is known of a file. LibreChat asks before it names a file, and uploads what is gone again.
pub(super) async fn object(call: ApiCall, place: Place) -> Answer<Value> {
    let (conversation, entry) = at(&call, place).await?;
    Ok(Json(shown(&conversation.id, &entry)))
}

/// The files of a session; of one that is not there none.
pub(super) async fn list(call: ApiCall, Path(id): Path<String>) -> Reply {
    let conversation = call.key(session(&id)?);
    let (mut entries, mut room) = (Vec::new(), Room::default());
    let visit = |file: FileEntry| {
        entries.extend(Some(shown(&conversation.id, &file)).filter(|entry| room.takes(entry)));
        Ok(())
    };
    let visited_all = call.parts.files.visit(&conversation, None, visit).await?;
    Ok(listed::answer(Value::Array(entries), visited_all && !room.is_full))
}

/// Deletes a file.
pub(super) async fn remove(call: ApiCall, place: Place) -> Answer<Value> {
    let (conversation, entry) = at(&call, place).await?;
    call.parts.files.delete(&conversation, &entry.path, None).await?;
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
