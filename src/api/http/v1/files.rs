//! A conversation's files: list, read, write, delete. Bytes are not changed.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};

use super::call::{AtPath, Call, InConversation, Query};
use crate::{
    api::{
        http::{body::Bodies, error::ApiError, files as downloads},
        schema::{File, FileListing, arguments::Nothing},
    },
    services::files::{Change, Files},
};

/// List a conversation's files.
///
/// An unknown conversation has none.
#[utoipa::path(
    get, path = "/v1/conversations/{conversationId}/files", tag = "files", operation_id = "listFiles",
    params(InConversation),
    responses((status = 200, description = "The files, ordered by path.", body = FileListing)),
)]
pub(super) async fn list(
    State(files): State<Arc<Files>>,
    _: Query<Nothing>,
    call: Call,
) -> Result<Json<FileListing>, ApiError> {
    Ok(Json(FileListing::from(&files.list(&call.conversation()?).await?)))
}

/// Read a file.
///
/// Its bytes, unchanged. HTTP ranges and conditions are supported.
#[utoipa::path(
    get, path = "/v1/conversations/{conversationId}/files/{path}", tag = "files", operation_id = "readFile",
    params(InConversation, AtPath),
    responses(
        (status = 200, description = "The file.", content_type = "*/*", body = String,
            headers(("etag" = String, description = "Identifies this content."))),
        (status = 206, description = "The requested part."),
        (status = 304, description = "The client has the current version."),
        (status = 412, description = "The condition does not hold."),
        (status = 416, description = "The part begins beyond the end."),
    ),
)]
pub(super) async fn read(State(files): State<Arc<Files>>, _: Query<Nothing>, call: Call) -> Result<Response, ApiError> {
    let download = files.open(&call.conversation()?, &call.path()?).await?;
    Ok(downloads::present_to(&call.method, &call.headers, download))
}

/// Write a file.
///
/// The body is the whole content. Folders on the way are made; an existing file is replaced in one step.
#[utoipa::path(
    put, path = "/v1/conversations/{conversationId}/files/{path}", tag = "files", operation_id = "writeFile",
    params(InConversation, AtPath),
    request_body(content = String, content_type = "application/octet-stream", description = "The whole content, of any \
        kind: the type follows from the name, not from the header."),
    responses(
        (status = 200, description = "It was replaced.", body = File),
        (status = 201, description = "It was made.", body = File),
    ),
)]
pub(super) async fn write(
    State(files): State<Arc<Files>>,
    State(limits): State<Bodies>,
    _: Query<Nothing>,
    call: Call,
    body: Body,
) -> Result<Response, ApiError> {
    let (conversation, path) = (call.conversation()?, call.path()?);
    let bytes = limits.read(&call.headers, body).await?;
    let entry = files.write(&conversation, &path, bytes).await?;
    let status = if entry.change == Change::Created { StatusCode::CREATED } else { StatusCode::OK };
    let mut response = (status, Json(File::from(&entry))).into_response();
    // A program may have removed or replaced it already; then there is no validator to send.
    if let Ok(download) = files.open(&conversation, &path).await
        && download.size == entry.size
        && let Ok(etag) = HeaderValue::from_str(&download.etag)
    {
        response.headers_mut().insert(header::ETAG, etag);
    }
    Ok(response)
}

/// Delete a file.
///
/// A link is deleted, not what it points to; a folder with all it holds.
#[utoipa::path(
    delete, path = "/v1/conversations/{conversationId}/files/{path}", tag = "files", operation_id = "deleteFile",
    params(InConversation, AtPath),
    responses((status = 204, description = "It was deleted.")),
)]
pub(super) async fn remove(
    State(files): State<Arc<Files>>,
    _: Query<Nothing>,
    call: Call,
) -> Result<StatusCode, ApiError> {
    files.delete(&call.conversation()?, &call.path()?).await?;
    Ok(StatusCode::NO_CONTENT)
}
