//! Files of a session's conversation, to it and from it.
//!
//! CodeRunner's clients name absolute paths; here each is below `/data`, and the answer says where.

use axum::Json;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use multer::{Constraints, Field, SizeLimit};
use serde_json::{Value, json};

use super::{members, sessions::named};
use crate::{
    api::http::{
        Answer,
        body::RequestBody,
        multipart::{self, Form},
        parts::ApiCall,
    },
    domain::{
        error::{Code, Failure},
        owner::ConversationKey,
        path::SafePath,
    },
};

/// The longest file that one answer holds, in bytes; a longer one has a signed link.
const DOWNLOAD_BYTES_MAX: u64 = 8 << 20;
/// A member beside the file, in bytes.
const MEMBER_BYTES_MAX: u64 = 8 << 10;
const MEMBERS_MAX: usize = 8;
/// The folders that stand for `/data` in CodeRunner's containers and in ours.
const DATA: [&str; 2] = ["/app/uploads/", "/data/"];

/// Writes a file. The members `session_id` and `remote_path` come before the file, as the SDK sends them.
pub(super) async fn upload(call: ApiCall, body: RequestBody) -> Answer<Value> {
    let names = ["remote_path", "session_id", "recursive"];
    let limits = names.iter().fold(SizeLimit::new(), |limits, name| limits.for_field(*name, MEMBER_BYTES_MAX));
    let mut form = Form::announced(body, Constraints::new().size_limit(limits))?;
    let (mut session, mut path) = (None, None);
    for _ in 0..MEMBERS_MAX {
        let Some(field) = form.next_field().await? else { break };
        match field.name() {
            Some("session_id") => session = Some(multipart::text(field).await?),
            Some("remote_path") => path = Some(multipart::text(field).await?),
            Some("file") => {
                let early = |name: &str| Failure::argument(name, "it is missing: send it before the file");
                let session = session.ok_or_else(|| early("session_id"))?;
                let path = path.ok_or_else(|| early("remote_path"))?;
                return write(&call, &session, &path, field).await;
            }
            _ => {}
        }
    }
    Err(Failure::argument("file", "it is missing: send the file").into())
}

async fn write(call: &ApiCall, session: &str, path: &str, field: Field<'_>) -> Answer<Value> {
    let conversation = conversation(call, session)?;
    let folder = path.ends_with('/');
    let name = field.file_name().and_then(|name| name.rsplit('/').next()).unwrap_or_default();
    let path = below_data("remote_path", &if folder { format!("{path}{name}") } else { path.to_owned() })?;
    let entry = call.parts.files.upload(&conversation, &path, None, None, multipart::pieces(field)).await?;
    let path = format!("/data/{}", path.text());
    Ok(Json(json!({"status": "success", "path": path, "size": entry.size})))
}

/// Reads a file, in base64.
pub(super) async fn download(call: ApiCall, body: RequestBody) -> Answer<Value> {
    let body = members(body).await?;
    let member = |name: &str| {
        let text = body.get(name).and_then(Value::as_str);
        text.ok_or_else(|| Failure::argument(name, "it is missing: give a text"))
    };
    let conversation = conversation(&call, member("session_id")?)?;
    let path = below_data("filename", member("filename")?)?;
    let file = call.parts.files.read(&conversation, &path, 0, DOWNLOAD_BYTES_MAX).await?;
    if file.truncated {
        let why = "The file is too large for one answer: read it at /v1/conversations/{conversationId}/files/{path}.";
        return Err(Failure::new(Code::TooLarge, why).into());
    }
    let content = BASE64_STANDARD.encode(&file.bytes);
    Ok(Json(json!({"status": "success", "filename": path.text(), "size": file.size, "content": content})))
}

fn conversation(call: &ApiCall, session: &str) -> Result<ConversationKey, Failure> {
    Ok(call.parts.sessions.get(&call.who, named(session)?)?.conversation)
}

fn below_data(name: &str, path: &str) -> Result<SafePath, Failure> {
    let within = DATA.iter().find_map(|folder| path.strip_prefix(folder)).unwrap_or(path);
    SafePath::from_text(within.trim_start_matches('/')).map_err(|why| Failure::argument(name, why))
}
