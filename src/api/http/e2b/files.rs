//! Files of a sandbox. A folder exists for this surface while a file is in it. Making a folder, for which the services
//! have no call, runs as a command.

use std::collections::BTreeMap;

use axum::{
    Json,
    http::{HeaderMap, Method, StatusCode},
    response::Response,
};
use multer::Constraints;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{InSandbox, a_file, below_data, process::quoted};
use crate::{
    api::http::{
        Answer,
        body::RequestBody,
        error::ApiError,
        files as downloads,
        multipart::{self, Form},
        parts::Query,
    },
    domain::{
        error::{Code, Failure},
        file::FileEntry,
        id::Language,
        outcome::Ended,
        path::SafePath,
        text::rfc3339,
    },
    services::{files::FileQuery, runs::RunRequest},
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
pub(super) async fn read(
    sandbox: InSandbox,
    Query(AtPath { path }): Query<AtPath>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let path = a_file(&path.unwrap_or_default())?;
    let download = sandbox.parts.files.open(&sandbox.key, &path).await.map_err(absent)?;
    Ok(downloads::present_to(&method, &headers, download))
}

/// Writes the body, or each file of a form.
pub(super) async fn write(
    sandbox: InSandbox,
    Query(AtPath { path }): Query<AtPath>,
    body: RequestBody,
) -> Answer<Vec<Value>> {
    let Some(boundary) = body.boundary() else {
        let (announced, pieces) = body.stream()?;
        let path = a_file(&path.unwrap_or_default())?;
        let entry = sandbox.parts.files.upload(&sandbox.key, &path, None, announced, pieces).await?;
        return Ok(Json(vec![written(&entry.path)]));
    };
    let mut form = Form::new(body, boundary, Constraints::new())?;
    let mut files = Vec::new();
    while let Some(field) = form.next_field().await? {
        if files.len() == FILES_MAX {
            return Err(Failure::new(Code::TooLarge, format!("A form holds at most {FILES_MAX} files.")).into());
        }
        let path = a_file(path.as_deref().or(field.file_name()).unwrap_or_default())?;
        let entry = sandbox.parts.files.upload(&sandbox.key, &path, None, None, multipart::pieces(field)).await?;
        files.push(written(&entry.path));
    }
    Ok(Json(files))
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

async fn named(body: RequestBody) -> Result<SafePath, Failure> {
    a_file(&body.lenient::<Named>().await?.path.unwrap_or_default())
}

/// What is in a folder, to a depth.
pub(super) async fn list(sandbox: InSandbox, body: RequestBody) -> Answer<Value> {
    let Named { path, depth, .. } = body.lenient().await?;
    let folder = below_data(&path.unwrap_or_default())?;
    let above = folder.as_ref().map_or(0, |folder| folder.components().count());
    let depth = usize::try_from(depth.unwrap_or(1).max(1)).unwrap_or(usize::MAX);
    let mut shown = BTreeMap::new();
    let visit = |file: FileEntry| {
        let names: Vec<_> = file.path.components().collect();
        for length in above + 1..=names.len().min(above.saturating_add(depth)) {
            let path = SafePath::from_components(&names[..length]).map_err(|why| Failure::argument("path", why))?;
            let entry = if length == names.len() { of_file(&file) } else { of_folder(&path) };
            shown.insert(path, entry);
        }
        Ok(())
    };
    sandbox.parts.files.visit(&sandbox.key, folder.as_ref(), visit).await?;
    if shown.is_empty() && folder.is_some() {
        return Err(Failure::new(Code::FileNotFound, "There is no such folder, or nothing is in it.").into());
    }
    Ok(Json(json!({"entries": shown.into_values().collect::<Vec<_>>()})))
}

/// A file or a folder.
pub(super) async fn stat(sandbox: InSandbox, body: RequestBody) -> Answer<Value> {
    let path = named(body).await?;
    let entry = match sandbox.parts.files.open(&sandbox.key, &path).await.map_err(absent) {
        Ok(file) => entry(&path, "FILE_TYPE_FILE", file.size, file.modified_unix_s),
        Err(failure) if matches!(failure.code, Code::NotAFile | Code::FileNotFound) => {
            let query = FileQuery { folder: Some(path.clone()), after: None, limit: Some(1) };
            if sandbox.parts.files.page(&sandbox.key, query).await?.files.is_empty() {
                return Err(Failure::new(Code::FileNotFound, "There is no such file.").into());
            }
            of_folder(&path)
        }
        Err(failure) => return Err(failure.into()),
    };
    Ok(Json(json!({"entry": entry})))
}

/// Deletes a file, or a folder with all it holds.
pub(super) async fn remove(sandbox: InSandbox, body: RequestBody) -> Answer<Value> {
    let path = named(body).await?;
    sandbox.parts.files.delete(&sandbox.key, &path, None).await.map_err(absent)?;
    Ok(Json(json!({})))
}

/// Makes a folder. One that is there is 409, which the SDK expects.
pub(super) async fn make_dir(sandbox: InSandbox, body: RequestBody) -> Answer<Value> {
    let path = named(body).await?;
    let name = quoted(&path.text());
    let language: Language = "bash".parse().map_err(|why| Failure::argument("language", why))?;
    let command = format!("[ ! -d {name} ] || exit 17; mkdir -p -- {name}");
    let request = RunRequest {
        detach: Some(false),
        within: sandbox.trace,
        ..RunRequest::new(sandbox.key, language, command.into())
    };
    let report = sandbox.parts.runs.begin(request)?.finished().await?;
    match report.outcome.ended {
        Ended::Exited { code: 0 } => Ok(Json(json!({"entry": of_folder(&path)}))),
        Ended::Exited { code: 17 } => {
            let status = Some(StatusCode::CONFLICT);
            Err(ApiError { status, ..ApiError::new(Code::NotAFile, "The folder is there already.") })
        }
        _ => Err(Failure::argument("path", format!("it cannot be used: {}", report.stderr.text.trim())).into()),
    }
}

/// Renames a file or a folder. A file that has the path is replaced, as there.
pub(super) async fn rename(sandbox: InSandbox, body: RequestBody) -> Answer<Value> {
    let Named { source, destination, .. } = body.lenient().await?;
    let (from, to) = (a_file(&source.unwrap_or_default())?, a_file(&destination.unwrap_or_default())?);
    let moved = sandbox.parts.files.rename(&sandbox.key, &from, &to, true, None).await.map_err(absent)?;
    Ok(Json(json!({"entry": moved.as_ref().map_or_else(|| of_folder(&to), of_file)})))
}

fn of_file(file: &FileEntry) -> Value {
    entry(&file.path, "FILE_TYPE_FILE", file.size, file.modified_unix_s)
}

fn of_folder(path: &SafePath) -> Value {
    entry(path, "FILE_TYPE_DIRECTORY", 0, 0)
}

fn entry(path: &SafePath, kind: &str, size: u64, modified_unix_s: i64) -> Value {
    let is_file = kind == "FILE_TYPE_FILE";
    json!({
        "name": String::from_utf8_lossy(path.name()),
        "type": kind,
        "path": at(path),
        "size": size.to_string(),
        "mode": if is_file { 0o644 } else { 0o755 },
        "permissions": if is_file { "-rw-r--r--" } else { "drwxr-xr-x" },
        "owner": "user",
        "group": "user",
        "modifiedTime": rfc3339(modified_unix_s),
    })
}
