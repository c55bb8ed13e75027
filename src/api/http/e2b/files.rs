//! Files of a sandbox. A folder exists for this surface while a file is in it.

use axum::{Json, http::StatusCode};
use multer::Constraints;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{NamedSandbox, a_file, below_data};
use crate::{
    api::http::{Answer, ApiError, Form, Query, Reply, RequestBody, Room, files as downloads, listed, multipart},
    domain::{Code, Failure, FileEntry, SafePath, text::rfc3339},
    ports::storage::FileFilter,
    services::files::FileQuery,
};

/// The files of one upload.
const FILES_MAX: usize = 200;

#[derive(Deserialize)]
pub(super) struct AtPath {
    path: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
struct Named {
    path: Option<String>,
    depth: Option<u64>,
    source: Option<String>,
    destination: Option<String>,
}

/// The bytes of a file.
pub(super) async fn read(sandbox: NamedSandbox, Query(AtPath { path }): Query<AtPath>) -> Reply {
    let path = a_file("path", &path.unwrap_or_default())?;
    let download = sandbox.call.parts.files.open(&sandbox.key, &path).await.map_err(absent)?;
    Ok(downloads::present_to(&sandbox.call.method, &sandbox.call.headers, &download))
}

/// Writes the body, or each file of a form. As there, a form names each path once: the first file that has it is
/// written, and a second one is refused.
pub(super) async fn write(
    sandbox: NamedSandbox,
    Query(AtPath { path }): Query<AtPath>,
    body: RequestBody,
) -> Answer<Vec<Value>> {
    let Some(boundary) = body.boundary() else {
        let (announced, pieces) = body.stream()?;
        let path = a_file("path", &path.unwrap_or_default())?;
        let entry = sandbox.call.parts.files.upload(&sandbox.key, &path, None, announced, pieces).await?;
        return Ok(Json(vec![written(&entry.path)]));
    };
    let mut form = Form::new(body, boundary, Constraints::new())?;
    let mut paths = Vec::new();
    while let Some(field) = form.next_field().await? {
        if paths.len() == FILES_MAX {
            return Err(Failure::new(Code::TooLarge, format!("A form holds at most {FILES_MAX} files.")).into());
        }
        let path = a_file("path", path.as_deref().or(field.file_name()).unwrap_or_default())?;
        if paths.contains(&path) {
            let why = "two files of the form have it, the first was written: name each one's path as its filename";
            return Err(Failure::argument("path", why).into());
        }
        let entry = sandbox.call.parts.files.upload(&sandbox.key, &path, None, None, multipart::pieces(field)).await?;
        paths.push(entry.path);
    }
    Ok(Json(paths.iter().map(written).collect()))
}

fn written(path: &SafePath) -> Value {
    json!({"name": String::from_utf8_lossy(path.name()), "type": "file", "path": at(path)})
}

fn at(path: &SafePath) -> String {
    format!("/home/user/{}", path.text())
}

/// The SDK knows 404 as a file that is not there.
fn absent(failure: Failure) -> Failure {
    match failure.code {
        Code::ConversationNotFound => Failure::new(Code::FileNotFound, "There is no such file."),
        _ => failure,
    }
}

/// The path that a request names; `None` for the folder of all files.
async fn named(body: RequestBody) -> Result<Option<SafePath>, Failure> {
    below_data("path", &body.lenient::<Named>().await?.path.unwrap_or_default())
}

/// What is in a folder, to a depth.
pub(super) async fn list(sandbox: NamedSandbox, body: RequestBody) -> Reply {
    let Named { path, depth, .. } = body.lenient().await?;
    let folder = below_data("path", &path.unwrap_or_default())?;
    let depth = usize::try_from(depth.unwrap_or(1).max(1)).unwrap_or(usize::MAX);
    let (files, room) = (&sandbox.call.parts.files, Room::default());
    let found = listed::folder(files, &sandbox.key, folder.as_ref(), depth, room, |path, file| {
        file.map_or_else(|| of_folder(path), of_file)
    });
    let (entries, is_whole) = found.await?;
    if entries.is_empty() && folder.is_some() {
        return Err(Failure::new(Code::FileNotFound, "There is no such folder, or nothing is in it.").into());
    }
    Ok(listed::answer(json!({"entries": entries}), is_whole))
}

/// A file or a folder.
pub(super) async fn stat(sandbox: NamedSandbox, body: RequestBody) -> Answer<Value> {
    let Some(path) = named(body).await? else { return Ok(Json(json!({"entry": entry(None, None)}))) };
    let entry = match sandbox.call.parts.files.open(&sandbox.key, &path).await.map_err(absent) {
        Ok(file) => entry(Some(&path), Some((file.size, file.modified_unix_s))),
        Err(failure) if matches!(failure.code, Code::NotAFile | Code::FileNotFound) => {
            let filter = FileFilter { folder: Some(path.clone()), ..FileFilter::default() };
            let query = FileQuery { filter, limit: Some(1) };
            if sandbox.call.parts.files.page(&sandbox.key, query).await?.files.is_empty() {
                return Err(Failure::new(Code::FileNotFound, "There is no such file.").into());
            }
            of_folder(&path)
        }
        Err(failure) => return Err(failure.into()),
    };
    Ok(Json(json!({"entry": entry})))
}

/// Deletes a file, or a folder with all it holds.
pub(super) async fn remove(sandbox: NamedSandbox, body: RequestBody) -> Answer<Value> {
    let path = a_file("path", &body.lenient::<Named>().await?.path.unwrap_or_default())?;
    sandbox.call.parts.files.delete(&sandbox.key, &path, None).await.map_err(absent)?;
    Ok(Json(json!({})))
}

/// Makes a folder. One that is there is 409, which the SDK expects.
pub(super) async fn make_dir(sandbox: NamedSandbox, body: RequestBody) -> Answer<Value> {
    let there = || ApiError {
        status: Some(StatusCode::CONFLICT),
        ..ApiError::new(Code::NotAFile, "The folder is there already.")
    };
    let path = named(body).await?.ok_or_else(there)?;
    let is_made = sandbox.call.parts.files.make_folders(&sandbox.key, &path).await.map_err(unusable)?;
    if is_made { Ok(Json(json!({"entry": of_folder(&path)}))) } else { Err(there()) }
}

/// A file in the way has another status than a folder that is there.
fn unusable(failure: Failure) -> Failure {
    match failure.code {
        Code::NotAFile => Failure::argument("path", format!("it cannot be used: {}", failure.message)),
        _ => failure,
    }
}

/// Renames a file or a folder. A file that has the path is replaced, as there.
pub(super) async fn rename(sandbox: NamedSandbox, body: RequestBody) -> Answer<Value> {
    let Named { source, destination, .. } = body.lenient().await?;
    let from = a_file("source", &source.unwrap_or_default())?;
    let to = a_file("destination", &destination.unwrap_or_default())?;
    let moved = sandbox.call.parts.files.rename(&sandbox.key, &from, &to, true, None).await;
    let moved = moved.map_err(|failure| absent(failure).renamed("to", "destination"))?;
    Ok(Json(json!({"entry": moved.as_ref().map_or_else(|| of_folder(&to), of_file)})))
}

fn of_file(file: &FileEntry) -> Value {
    entry(Some(&file.path), Some((file.size, file.modified_unix_s)))
}

fn of_folder(path: &SafePath) -> Value {
    entry(Some(path), None)
}

/// A file, with its size and when it was changed, or a folder. The folder of all files has no path.
fn entry(path: Option<&SafePath>, file: Option<(u64, i64)>) -> Value {
    let (size, modified_unix_s) = file.unwrap_or_default();
    json!({
        "name": path.map_or("user".into(), |path| String::from_utf8_lossy(path.name())),
        "type": if file.is_some() { "FILE_TYPE_FILE" } else { "FILE_TYPE_DIRECTORY" },
        "path": path.map_or_else(|| "/home/user".to_owned(), at),
        "size": size.to_string(),
        "mode": if file.is_some() { 0o644 } else { 0o755 },
        "permissions": if file.is_some() { "-rw-r--r--" } else { "drwxr-xr-x" },
        "owner": "user",
        "group": "user",
        "modifiedTime": rfc3339(modified_unix_s),
    })
}
