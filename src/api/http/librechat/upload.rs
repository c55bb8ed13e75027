//! Files for later programs. Each upload is a new session; later programs name its files.

use axum::Json;
use multer::{Constraints, Field};
use serde_json::{Value, json};

use super::{file_id, fresh};
use crate::{
    api::http::{
        Answer,
        body::RequestBody,
        error::ApiError,
        multipart::{self, Form},
        parts::ApiCall,
    },
    domain::{
        error::{Code, Failure},
        id::ConversationId,
        owner::ConversationKey,
        path::SafePath,
    },
};

/// The members of one form: its files and what is said of them, which is not used.
const MEMBERS_MAX: usize = 1000;

struct Received {
    session: ConversationId,
    files: Vec<(String, Result<String, Failure>)>,
}

/// Writes a file into a new session.
pub(super) async fn one(call: ApiCall, body: RequestBody) -> Answer<Value> {
    let Received { session, files } = receive(&call, body).await?;
    let mut shown = Vec::new();
    for (filename, written) in files {
        shown.push(json!({"fileId": written?, "filename": filename}));
    }
    let session = session.as_str();
    Ok(Json(json!({"message": "success", "session_id": session, "storage_session_id": session, "files": shown})))
}

/// Writes several files into a new session. One that cannot be written does not stop the others.
pub(super) async fn batch(call: ApiCall, body: RequestBody) -> Answer<Value> {
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
