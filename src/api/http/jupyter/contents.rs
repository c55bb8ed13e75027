//! Contents: the files of a conversation. A folder exists while a file is in it; there are no checkpoints.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse as _,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures_util::stream;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::{Call, members};
use crate::{
    api::{
        http::{
            Answer, ApiError, Reply, RequestBody, Room,
            files::{NOT_WHOLE, WHOLE_BYTES_MAX},
            listed, no_content,
        },
        schema::parse::by_size,
    },
    domain::{Change, Code, ConversationKey, Failure, FileEntry, SafePath, file::media_type, text::rfc3339},
    services::files::Files,
};

const NOTEBOOK: &str = "ipynb";
/// Numbers that are tried for the name of a new file.
const NAMES_TRIED: u32 = 1000;
const NO_FOLDERS: &str = "A folder comes into being with its first file: save a file in it.";
const NO_PIECES: &str = "Files are not saved in pieces here: save it whole, or upload it to \
                         /v1/conversations/{conversationId}/files/{path}.";
const EMPTY_NOTEBOOK: &str = r#"{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}"#;

/// What is saved.
#[derive(Deserialize)]
struct Saved {
    #[serde(rename = "type")]
    kind: Option<String>,
    format: Option<String>,
    content: Option<Box<RawValue>>,
    /// The number of a piece, which a client sends of a large file.
    chunk: Option<i64>,
}

fn is_notebook(path: &SafePath) -> bool {
    path.name().rsplit(|byte| *byte == b'.').next() == Some(NOTEBOOK.as_bytes())
}

/// A file, with when it was changed and its size, or a folder. The folder above all has no path.
fn model(path: Option<&SafePath>, file: Option<(i64, u64)>) -> Value {
    let name = path.map_or(&b""[..], SafePath::name);
    let kind = match path.filter(|_| file.is_some()) {
        Some(path) if is_notebook(path) => "notebook",
        Some(_) => "file",
        None => "directory",
    };
    let (modified_unix_s, size) = file.unzip();
    let modified = rfc3339(modified_unix_s.unwrap_or_default());
    json!({"name": String::from_utf8_lossy(name), "path": path.map(SafePath::text).unwrap_or_default(), "type": kind,
        "created": modified, "last_modified": modified, "content": null, "format": null, "writable": true,
        "size": size, "mimetype": (kind == "file").then(|| media_type(name))})
}

fn of_file(file: &FileEntry) -> Value {
    model(Some(&file.path), Some((file.modified_unix_s, file.size)))
}

/// What is directly in a folder, and whether that is all.
async fn folder(
    files: &Files,
    key: &ConversationKey,
    path: Option<&SafePath>,
) -> Result<Option<(Value, bool)>, Failure> {
    let mut shown = model(path, None);
    let found = listed::folder(files, key, path, 1, Room::beside(&shown), |path, file| {
        file.map_or_else(|| model(Some(path), None), of_file)
    });
    let (found, is_whole) = found.await?;
    if found.is_empty() && path.is_some() {
        return Ok(None);
    }
    (shown["content"], shown["format"]) = (found.into(), "json".into());
    Ok(Some((shown, is_whole)))
}

pub(super) async fn read(State(files): State<Arc<Files>>, call: Call) -> Reply {
    let (key, path) = (call.contents()?, call.path()?);
    let Some(path) = path else {
        let (mut top, mut is_whole) = folder(&files, &key, None).await?.unwrap_or_default();
        if !has_content(&call) {
            (top["content"], top["format"], is_whole) = (Value::Null, Value::Null, true);
        }
        return Ok(listed::answer(top, is_whole));
    };
    let missing = match file(&files, &key, &path, &call).await {
        Err(missing) if matches!(missing.code, Code::FileNotFound | Code::NotAFile | Code::ConversationNotFound) => {
            missing
        }
        done => return Ok(Json(done?).into_response()),
    };
    if let Some(parent) = parent_of_checkpoints(&path)
        && files.open(&key, &parent).await.is_ok()
    {
        return Ok(Json(json!([])).into_response());
    }
    let (folder, is_whole) = folder(&files, &key, Some(&path)).await?.ok_or(missing)?;
    Ok(listed::answer(folder, is_whole))
}

/// The file whose checkpoints a path asks for.
fn parent_of_checkpoints(path: &SafePath) -> Option<SafePath> {
    path.folders().last().filter(|_| path.name() == b"checkpoints")
}

/// Whether an answer has the content too.
fn has_content(call: &Call) -> bool {
    call.query("content").as_deref() != Some("0")
}

async fn file(files: &Files, key: &ConversationKey, path: &SafePath, call: &Call) -> Result<Value, Failure> {
    let opened = files.open(key, path).await?;
    let mut shown = model(Some(path), Some((opened.modified_unix_s, opened.size)));
    if !has_content(call) {
        return Ok(shown);
    }
    let read = files.read(key, path, 0, WHOLE_BYTES_MAX).await?.whole(NOT_WHOLE)?;
    let format = call.query("format").unwrap_or_default();
    let (as_bytes, as_notebook) = (format == "base64", is_notebook(path) && format != "text");
    let (format, content) = by_size(read.bytes.len(), move || content_of(&read.bytes, as_bytes, as_notebook)).await;
    (shown["format"], shown["content"]) = (format.into(), content);
    if format != "json" {
        shown["type"] = "file".into();
    }
    Ok(shown)
}

/// A file's format and its content in it.
fn content_of(bytes: &[u8], as_bytes: bool, as_notebook: bool) -> (&'static str, Value) {
    let text = std::str::from_utf8(bytes).ok().filter(|_| !as_bytes);
    let notebook = text.filter(|_| as_notebook);
    match (notebook.and_then(|text| serde_json::from_str::<Value>(text).ok()), text) {
        (Some(notebook), _) => ("json", notebook),
        (None, Some(text)) => ("text", text.into()),
        (None, None) => ("base64", BASE64_STANDARD.encode(bytes).into()),
    }
}

pub(super) async fn write(State(files): State<Arc<Files>>, call: Call, body: RequestBody) -> Reply {
    let path = call.path()?.ok_or_else(|| Failure::argument("path", "it is missing"))?;
    let body = body.read().await?;
    let sent = body.clone();
    let bytes = by_size(body.len(), move || saved(&sent)).await?;
    let key = call.contents()?;
    let entry = files.write(&key, &path, bytes.into()).await?;
    let status = if entry.change == Change::Created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, [location(&call, &path)], Json(of_file(&entry))).into_response())
}

/// The bytes of the file that a model holds.
fn saved(model: &[u8]) -> Result<Vec<u8>, Failure> {
    let wrong = |why: &str| Failure::new(Code::InvalidRequest, why);
    let saved: Saved = serde_json::from_slice(model).map_err(|_| wrong("The body is not a contents model."))?;
    if saved.kind.as_deref() == Some("directory") {
        return Err(wrong(NO_FOLDERS));
    }
    if saved.chunk.is_some() {
        return Err(wrong(NO_PIECES));
    }
    let content = saved.content.ok_or_else(|| wrong("The content is missing."))?;
    let text = || serde_json::from_str::<String>(content.get()).map_err(|_| wrong("The content is not a text."));
    match saved.format.as_deref() {
        Some("base64") => {
            BASE64_STANDARD.decode(text()?.replace('\n', "")).map_err(|_| wrong("The content is not base64."))
        }
        Some("text") => Ok(text()?.into_bytes()),
        _ if saved.kind.as_deref() == Some("file") => Err(wrong("The format of a file must be `text` or `base64`.")),
        _ => Ok(content.get().as_bytes().to_vec()),
    }
}

/// Creates a file under a name that is free: a new one, an empty notebook, or a copy.
pub(super) async fn create(State(files): State<Arc<Files>>, call: Call, body: RequestBody) -> Reply {
    let members = members(body).await?;
    let member = |name: &str| members.get(name).and_then(Value::as_str).unwrap_or_default();
    let (key, folder) = (call.contents()?, call.path()?);
    if let Some(file) = folder.as_ref().and_then(parent_of_checkpoints)
        && files.open(&key, &file).await.is_ok()
    {
        return Err(Failure::new(Code::InvalidRequest, "There are no checkpoints: make a copy of the file.").into());
    }
    let copied = match member("copy_from").trim_start_matches('/') {
        "" => None,
        from => Some(SafePath::from_text(from).map_err(|why| Failure::argument("copy_from", why))?),
    };
    let (first, insert) = match &copied {
        Some(from) => (without_copy_number(&String::from_utf8_lossy(from.name())), "-Copy"),
        None if member("type") == "directory" => return Err(Failure::new(Code::InvalidRequest, NO_FOLDERS).into()),
        None if member("type") == "notebook" || member("ext") == ".ipynb" => ("Untitled.ipynb".to_owned(), ""),
        None => (format!("untitled{}", member("ext")), ""),
    };
    let (stem, extension) = first.split_at(first.rfind('.').filter(|at| *at > 0).unwrap_or(first.len()));
    for n in 0..NAMES_TRIED {
        let number = if n == 0 { String::new() } else { format!("{insert}{n}") };
        let name = format!("{stem}{number}{extension}");
        let names = folder.iter().flat_map(SafePath::components).chain([name.as_bytes()]);
        let path = SafePath::from_components(names).map_err(|why| Failure::argument("ext", why))?;
        let created = if let Some(from) = &copied {
            files.copy((&key, from), (&key, &path), Some(Box::new(|other| other.is_none()))).await
        } else {
            let content = if is_notebook(&path) { EMPTY_NOTEBOOK } else { "" };
            let bytes = stream::iter([Ok(content.into())]);
            files.upload(&key, &path, Some(Box::new(|other| other.is_none())), None, bytes).await
        };
        match created {
            Err(taken) if taken.code == Code::PreconditionFailed => {}
            created => {
                return Ok((StatusCode::CREATED, [location(&call, &path)], Json(of_file(&created?))).into_response());
            }
        }
    }
    let why = format!("There are {NAMES_TRIED} files of that name: save the file under another name.");
    Err(in_the_way(Failure::new(Code::PreconditionFailed, why)))
}

/// As Jupyter says that a path is taken.
fn in_the_way(failure: Failure) -> ApiError {
    let status = (failure.code == Code::PreconditionFailed).then_some(StatusCode::CONFLICT);
    ApiError { status, ..failure.into() }
}

fn location(call: &Call, path: &SafePath) -> (header::HeaderName, String) {
    (header::LOCATION, format!("{}/api/contents/{}", call.base, path.to_encoded()))
}

/// The name that a copy, or a copy of a copy, was made from.
fn without_copy_number(name: &str) -> String {
    let (stem, extension) = name.split_at(name.rfind('.').unwrap_or(name.len()));
    let original = stem.trim_end_matches(|one: char| one.is_ascii_digit()).strip_suffix("-Copy");
    format!("{}{extension}", original.unwrap_or(stem))
}

/// Gives a file or a folder another path, under which there must be nothing.
pub(super) async fn rename(State(files): State<Arc<Files>>, call: Call, body: RequestBody) -> Answer<Value> {
    let members = members(body).await?;
    let (key, from) = (call.contents()?, call.path()?);
    let from = from.ok_or_else(|| Failure::argument("path", "it is missing"))?;
    let to = members.get("path").and_then(Value::as_str).unwrap_or_default();
    let to = SafePath::from_text(to.trim_start_matches('/')).map_err(|why| Failure::argument("path", why))?;
    let entry = files.rename(&key, &from, &to, false, None).await;
    let entry = entry.map_err(|failure| in_the_way(failure.renamed("to", "path")))?;
    Ok(Json(entry.as_ref().map_or_else(|| model(Some(&to), None), of_file)))
}

pub(super) async fn remove(State(files): State<Arc<Files>>, call: Call) -> Reply<StatusCode> {
    let path = call.path()?.ok_or_else(|| Failure::argument("path", "it is missing"))?;
    no_content(files.delete(&call.contents()?, &path, None).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_before_the_year_0_is_one_that_clients_can_read() {
        let path = SafePath::from_text("a.txt").expect("a path");
        let file = model(Some(&path), Some((-100_000_000_000, 0)));
        assert_eq!(file["last_modified"], "1970-01-01T00:00:00Z");
    }
}
