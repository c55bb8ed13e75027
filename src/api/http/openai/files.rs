//! Files of a container. The id of a file is derived from its path, so nothing is stored for this surface.

use axum::Json;
use multer::Constraints;
use serde_json::{Value, json};

use super::{PageQuery, named};
use crate::{
    api::http::{
        Answer, Reply,
        body::RequestBody,
        files as downloads, listed,
        multipart::{self, Form},
        parts::{ApiCall, Path, Query},
    },
    domain::{
        error::{Code, Failure},
        file::FileEntry,
        owner::ConversationKey,
        path::SafePath,
        text::sha256,
    },
};

/// Members of a form that are read.
const MEMBERS_MAX: usize = 8;

/// Writes the file of a form.
pub(super) async fn create(call: ApiCall, Path(id): Path<String>, body: RequestBody) -> Answer<Value> {
    let key = named(&call, &id)?.key;
    let why = "there is no /files here: send the file as multipart/form-data";
    let boundary = body.boundary().ok_or_else(|| Failure::argument("file_id", why))?;
    let mut form = Form::new(body, boundary, Constraints::new())?;
    for _ in 0..MEMBERS_MAX {
        let Some(field) = form.next_field().await? else { break };
        let Some(name) = field.file_name() else { continue };
        let path = SafePath::from_text(name).map_err(|why| Failure::argument("file", why))?;
        let entry = call.parts.files.upload(&key, &path, None, None, multipart::pieces(field)).await?;
        return Ok(Json(shown(&key, &entry)));
    }
    Err(Failure::argument("file", "it is missing: send the file").into())
}

/// A page of the files, the newest first. Files that no page has are left out with the header of [`listed::answer`].
pub(super) async fn list(call: ApiCall, Path(id): Path<String>, Query(query): Query<PageQuery>) -> Reply {
    let key = named(&call, &id)?.key;
    let mut entries = Vec::new();
    let visit = |file: FileEntry| {
        entries.push(file);
        Ok(())
    };
    let visited_all = call.parts.files.visit(&key, None, visit).await?;
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.modified_unix_s));
    let page = query.page(entries.iter().map(|entry| shown(&key, entry)).collect())?;
    Ok(listed::answer(page, visited_all))
}

pub(super) async fn retrieve(call: ApiCall, Path(place): Path<(String, String)>) -> Answer<Value> {
    let (key, entry) = find(&call, place).await?;
    Ok(Json(shown(&key, &entry)))
}

pub(super) async fn content(call: ApiCall, Path(place): Path<(String, String)>) -> Reply {
    let (key, entry) = find(&call, place).await?;
    let download = call.parts.files.open(&key, &entry.path).await?;
    Ok(downloads::present_to(&call.method, &call.headers, download))
}

pub(super) async fn remove(call: ApiCall, Path(place): Path<(String, String)>) -> Answer<Value> {
    let (key, entry) = find(&call, place).await?;
    call.parts.files.delete(&key, &entry.path, None).await?;
    Ok(Json(json!({"id": file_id(&entry.path), "object": "container.file.deleted", "deleted": true})))
}

async fn find(call: &ApiCall, (id, file): (String, String)) -> Result<(ConversationKey, FileEntry), Failure> {
    let key = named(call, &id)?.key;
    let found = call.parts.files.select(&key, |entry| file_id(&entry.path) == file).await?.pop();
    let found = found.ok_or_else(|| Failure::new(Code::FileNotFound, "There is no such file in this container."))?;
    Ok((key, found))
}

fn file_id(path: &SafePath) -> String {
    format!("cfile_{}", &sha256(path.as_bytes())[..32])
}

fn shown(key: &ConversationKey, entry: &FileEntry) -> Value {
    json!({
        "id": file_id(&entry.path),
        "object": "container.file",
        "container_id": key.id.as_str(),
        "bytes": entry.size,
        "created_at": entry.modified_unix_s,
        "path": format!("/mnt/data/{}", entry.path.text()),
        // Who made a file is not recorded.
        "source": "user",
    })
}
