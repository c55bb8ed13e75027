//! LibreChat's code interpreter API, for LibreChat's server and the tools of `@librechat/agents`.
//!
//! Paths, names and forms are LibreChat's; a session there is a conversation of ours. Its ids have 21 characters. The
//! id of a file is derived from its path, so nothing is stored for this surface. A token comes in the path, as
//! `Authorization: Bearer` or as `X-API-Key`: see [`super::arrival`]. Users of one LibreChat share its token, so what
//! keeps them apart is that sessions have ids that cannot be guessed, as in LibreChat's own service.
//!
//! Each upload is a new session; later programs name its files.

mod exec;

use axum::{
    Json, Router,
    routing::{get, post},
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use multer::{Constraints, Field};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::{Answer, ApiCall, ApiError, ApiParts, Form, Path, Reply, RequestBody, Room, listed, multipart};
use crate::domain::{Code, ConversationId, ConversationKey, Failure, FileEntry, SafePath, text::rfc3339};

/// Where the surface is.
pub const ROOT: &str = "/librechat";

/// What LibreChat accepts as an id, in characters.
const ID_CHARS: usize = 21;
/// The members of one form: its files and what is said of them, which is not used.
const MEMBERS_MAX: usize = 1000;

/// The routes. They must be mounted behind a middleware that puts a `Principal` into the request's extensions.
pub fn router(parts: ApiParts) -> Router {
    let routes = Router::new()
        .route("/exec", post(exec::exec))
        .route("/exec/programmatic", post(no_tools))
        .route("/upload", post(upload))
        .route("/upload/batch", post(upload_batch))
        .route("/download/{session}/{file}", get(download))
        .route("/sessions/{session}/objects/{file}", get(object))
        .route("/files/{session}", get(list))
        .route("/files/{session}/{file}", get(download).delete(remove))
        .with_state(parts);
    Router::new().nest(&format!("{ROOT}/v1"), routes)
}

async fn no_tools() -> ApiError {
    let why = "Programs cannot call tools through this interface: turn programmatic tool calling off in LibreChat.";
    let status = Some(axum::http::StatusCode::NOT_IMPLEMENTED);
    ApiError { status, ..ApiError::new(Code::NotFound, why) }
}

/// A new session: 114 random bits, since six of a UUID's are fixed.
fn fresh() -> ConversationId {
    let [rest @ .., _] = Uuid::new_v4().into_bytes();
    as_conversation(&rest)
}

/// The session that a text of the client stands for.
fn of_hint(hint: &str) -> ConversationId {
    as_conversation(&Sha256::digest(hint)[..15])
}

fn as_conversation(bytes: &[u8]) -> ConversationId {
    // 15 bytes are 20 characters, each of which a conversation may have.
    format!("s{}", BASE64_URL_SAFE_NO_PAD.encode(bytes)).parse().unwrap_or_else(|_| ConversationId::fresh())
}

/// The id of a file in its session.
fn file_id(path: &SafePath) -> String {
    format!("f{}", BASE64_URL_SAFE_NO_PAD.encode(&Sha256::digest(path.as_bytes())[..15]))
}

/// A session's id; any other text names no session.
fn session(id: &str) -> Result<ConversationId, Failure> {
    let known = (id.len() == ID_CHARS).then(|| id.parse().ok()).flatten();
    known.ok_or_else(|| Failure::new(Code::ConversationNotFound, "There is no such session, or it was deleted."))
}

struct Received {
    session: ConversationId,
    files: Vec<(String, Result<String, Failure>)>,
}

/// Writes a file into a new session.
async fn upload(call: ApiCall, body: RequestBody) -> Answer<Value> {
    let Received { session, files } = receive(&call, body).await?;
    let mut shown = Vec::new();
    for (filename, written) in files {
        shown.push(json!({"fileId": written?, "filename": filename}));
    }
    let session = session.as_str();
    Ok(Json(json!({"message": "success", "session_id": session, "storage_session_id": session, "files": shown})))
}

/// Writes several files into a new session. One that cannot be written does not stop the others.
async fn upload_batch(call: ApiCall, body: RequestBody) -> Answer<Value> {
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
    while let Some(mut field) = form.next_field().await? {
        members += 1;
        if members > MEMBERS_MAX {
            return Err(Failure::new(Code::TooLarge, format!("The form has more than {MEMBERS_MAX} members.")).into());
        }
        if let Some(name) = field.file_name().map(ToOwned::to_owned) {
            let written = write(call, &conversation, &name, &mut field).await;
            if let Err(failure) = &written
                && multipart::skip(field).await.is_err()
            {
                return Err(failure.clone().into());
            }
            files.push((name, written));
        }
    }
    if files.is_empty() {
        return Err(Failure::argument("file", "it is missing: send the file").into());
    }
    Ok(Received { session: conversation.id, files })
}

async fn write(
    call: &ApiCall,
    key: &ConversationKey,
    name: &str,
    field: &mut Field<'static>,
) -> Result<String, Failure> {
    let path = SafePath::from_text(name).map_err(|why| Failure::argument("file", why))?;
    let entry = call.parts.files.upload(key, &path, None, None, multipart::pieces(field)).await?;
    Ok(file_id(&entry.path))
}

fn no_file() -> Failure {
    Failure::new(Code::FileNotFound, "There is no such file in this session.")
}

type FileIds = Path<(String, String)>;

/// The file with this id, and its conversation.
///
/// # Errors
/// [`Code::FileNotFound`].
async fn at(call: &ApiCall, Path((id, file)): FileIds) -> Result<(ConversationKey, FileEntry), Failure> {
    let conversation = call.key(session(&id)?);
    let found = call.parts.files.find(&conversation, |entry| file_id(&entry.path) == file).await?;
    Ok((conversation, found.ok_or_else(no_file)?))
}

/// The bytes of a file.
async fn download(call: ApiCall, ids: FileIds) -> Reply {
    let (conversation, entry) = at(&call, ids).await?;
    call.download(&conversation, &entry.path).await
}

/// What is known of a file. LibreChat asks before it names a file, and uploads what is gone again.
async fn object(call: ApiCall, ids: FileIds) -> Answer<Value> {
    let (conversation, entry) = at(&call, ids).await?;
    Ok(Json(shown(&conversation.id, &entry)))
}

/// The files of a session; of one that is not there none.
async fn list(call: ApiCall, Path(id): Path<String>) -> Reply {
    let conversation = call.key(session(&id)?);
    let (mut entries, mut room) = (Vec::new(), Room::default());
    let visit =
        |file: FileEntry| entries.extend(Some(shown(&conversation.id, &file)).filter(|entry| room.takes(entry)));
    let visited_all = call.parts.files.visit(&conversation, None, visit).await?;
    Ok(listed::answer(Value::Array(entries), visited_all && !room.is_full))
}

/// Deletes a file.
async fn remove(call: ApiCall, ids: FileIds) -> Answer<Value> {
    let (conversation, entry) = at(&call, ids).await?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_the_form_that_clients_check() {
        let path = SafePath::from_text("a/b.txt").expect("a path");
        assert_eq!(file_id(&path), file_id(&path));
        assert_ne!(file_id(&path), file_id(&SafePath::from_text("a/c.txt").expect("a path")));
        for id in [fresh().to_string(), of_hint("a").to_string(), file_id(&path)] {
            assert_eq!(id.len(), ID_CHARS, "{id}");
            assert!(id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')), "{id}");
        }
        assert_ne!(fresh(), fresh());
        for id in ["", "x", "../../../../../../../", "c-0123456789abcdef0123456789abcdef", "-aaaaaaaaaaaaaaaaaaaa"] {
            assert!(session(id).is_err(), "{id}");
        }
    }

    #[test]
    fn only_its_own_paths_take_its_tokens() {
        for (path, own) in [("/librechat/v1/exec", true), ("/librechat", true), ("/librechatty", false), ("/v1", false)]
        {
            assert_eq!(crate::api::http::is_below(ROOT, path), own, "{path}");
        }
    }
}
