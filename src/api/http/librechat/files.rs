//! Files: uploaded, listed, looked at, downloaded, deleted. Each upload is a new session; later programs name its
//! files. A file is found by its id among those of its session.

use axum::Json;
use multer::{Constraints, Field};
use serde_json::{Value, json};

use super::{file_id, fresh, session};
use crate::{
    api::http::{
        Answer, Reply,
        body::RequestBody,
        error::ApiError,
        listed::{self, Room},
        multipart::{self, Form},
        parts::{ApiCall, Path},
    },
    domain::{
        error::{Code, Failure},
        file::FileEntry,
        id::ConversationId,
        owner::ConversationKey,
        path::SafePath,
        text::rfc3339,
    },
    services::files::Files,
};

/// The members of one form: its files and what is said of them, which is not used.
const MEMBERS_MAX: usize = 1000;

struct Received {
    session: ConversationId,
    files: Vec<(String, Result<String, Failure>)>,
}

/// Writes a file into a new session.
pub(super) async fn upload(call: ApiCall, body: RequestBody) -> Answer<Value> {
    let Received { session, files } = receive(&call, body).await?;
    let mut shown = Vec::new();
    for (filename, written) in files {
        shown.push(json!({"fileId": written?, "filename": filename}));
    }
    let session = session.as_str();
    Ok(Json(json!({"message": "success", "session_id": session, "storage_session_id": session, "files": shown})))
}

/// Writes several files into a new session. One that cannot be written does not stop the others.
pub(super) async fn upload_batch(call: ApiCall, body: RequestBody) -> Answer<Value> {
    let Received { session, files } = receive(&call, body).await?;
    let succeeded = files.iter().filter(|(_, written)| written.is_ok()).count();
    let failed = files.len() - succeeded;
    let shown: Vec<_> = files
        .into_iter()
        .map(|(filename, written)| match written {
            Ok(id) => json!({"status": "success", "fileId": id, "filename": filename}),
            Err(failure) => json!({"status": "error", "error": failure.message, "filename": filename}),
        })
        .collect();
    let message = match (succeeded, failed) {
        (_, 0) => "success",
        (0, _) => "error",
        _ => "partial_success",
    };
    let session = session.as_str();
    Ok(Json(json!({"message": message, "session_id": session, "storage_session_id": session, "files": shown,
        "succeeded": succeeded, "failed": failed})))
}

async fn receive(call: &ApiCall, body: RequestBody) -> Result<Received, ApiError> {
    let mut form = Form::announced(body, Constraints::new())?;
    let conversation = call.key(fresh());
    let (mut files, mut members) = (Vec::new(), 0);
    while let Some(field) = form.next_field().await? {
        members += 1;
        if members > MEMBERS_MAX {
            return Err(Failure::new(Code::TooLarge, format!("The form has more than {MEMBERS_MAX} members.")).into());
        }
        if let Some(name) = field.file_name().map(ToOwned::to_owned) {
            files.push((name.clone(), write(call, &conversation, &name, field).await));
        }
    }
    if files.is_empty() {
        return Err(Failure::argument("file", "it is missing: send the file").into());
    }
    Ok(Received { session: conversation.id, files })
}

async fn write(
    call: &ApiCall,
    conversation: &ConversationKey,
    name: &str,
    field: Field<'_>,
) -> Result<String, Failure> {
    let path = SafePath::from_text(name).map_err(|why| Failure::argument("file", why))?;
    let entry = call.parts.files.upload(conversation, &path, None, None, multipart::pieces(field)).await?;
    Ok(file_id(&entry.path))
}

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
    call.download(&conversation, &entry.path).await
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
