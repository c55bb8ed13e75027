//! A conversation's folder as a tar archive, both ways.

use std::sync::Arc;

use axum::{Json, extract::State};

use super::{call::Call, names::InConversation};
use crate::{
    api::{
        http::{Answer, Reply, body::RequestBody, error::ApiError, files as downloads},
        schema::{ArchiveLink, Binary},
    },
    domain::{error::Code, text::rfc3339},
    services::files::{Files, Imported},
};

/// Read all files of a conversation as a tar archive.
///
/// It holds plain files only. It is made while it is sent; when the connection ends early, it is incomplete.
#[utoipa::path(
    get, path = "/v1/conversations/{conversationId}/archive", tag = "files", operation_id = "readArchive",
    params(InConversation),
    responses((status = 200, description = "The archive.", content_type = "application/x-tar", body = Binary)),
)]
pub(super) async fn read(State(files): State<Arc<Files>>, call: Call) -> Reply {
    let conversation = call.conversation()?;
    let archive = files.archive(&conversation).await?;
    Ok(downloads::archive(&conversation, archive))
}

/// Make a link to all files of a conversation as a tar archive.
///
/// The link downloads the archive without a token. It works for five minutes.
#[utoipa::path(
    post, path = "/v1/conversations/{conversationId}/archive/link", tag = "files", operation_id = "linkArchive",
    params(InConversation),
    responses((status = 200, description = "The link.", body = ArchiveLink)),
)]
pub(super) async fn link(State(files): State<Arc<Files>>, call: Call) -> Answer<ArchiveLink> {
    let (url, expires_unix_s) = files.archive_url(&call.conversation()?).await?;
    Ok(Json(ArchiveLink { url, url_expires_at: rfc3339(expires_unix_s) }))
}

/// Write the files of a tar archive into a conversation.
///
/// Only plain files and folders are accepted: the whole archive is checked before the first file is written. Existing
/// files that are not in the archive stay.
#[utoipa::path(
    put, path = "/v1/conversations/{conversationId}/archive", tag = "files", operation_id = "writeArchive",
    params(InConversation),
    request_body(
        content((Binary = "application/x-tar"), (Binary = "application/octet-stream")),
        description = "A plain, uncompressed tar.",
    ),
    responses((status = 200, description = "What was written.", body = Imported)),
)]
pub(super) async fn write(State(files): State<Arc<Files>>, call: Call, body: RequestBody) -> Answer<Imported> {
    let conversation = call.conversation()?;
    if !matches!(body.media_type()?.as_str(), "" | "application/x-tar" | "application/octet-stream") {
        let why = "The body must be a plain tar: send the header `Content-Type: application/x-tar`.";
        return Err(ApiError::new(Code::UnsupportedMediaType, why));
    }
    let bytes = body.read().await?;
    Ok(Json(files.import(&conversation, bytes).await?))
}
