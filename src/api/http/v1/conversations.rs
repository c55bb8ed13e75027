//! Conversations: listed and deleted, the packages that are installed in them, and their files: list, read, write,
//! move, delete, and all of them as a tar archive, both ways. Bytes are not changed.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use schemars::JsonSchema;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{Call, Conditions, page};
use crate::{
    api::{
        http::{Answer, Reply, RequestBody, error::Problem, files as downloads, no_content},
        schema::{
            ArchiveLink, Binary, ConversationList, File, FileListing, MoveFile, Moved, file_filter,
            installed::{CreatePackages, InstalledPackages},
        },
    },
    domain::{ConversationId, ConversationKey, Failure, SafePath},
    ports::storage::FileFilter,
    services::{
        files::{Change, FileQuery, Files, Imported},
        packages::InstallRequest,
    },
};

/// The most files that can be asked for in one page.
const LIMIT_MAX: u64 = 10_000;

#[derive(Deserialize, JsonSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListConversations {
    /// The `after` of the previous page.
    #[param(value_type = Option<String>, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$", min_length = 1, max_length = 128)]
    after: Option<ConversationId>,
    /// Maximum number of items; default 50.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200)]
    limit: Option<u64>,
}

/// List the conversations that have files.
///
/// In the order of their names, a page at a time.
#[utoipa::path(
    get, path = "/v1/conversations", tag = "conversations", operation_id = "listConversations",
    params(ListConversations),
    responses((status = 200, description = "A page of conversations.", body = ConversationList)),
)]
pub(super) async fn list(call: Call<ListConversations>) -> Answer<ConversationList> {
    let page = call.parts.runs.conversations(&call.who, call.query.after.clone(), page(call.query.limit)?).await?;
    Ok(Json(ConversationList::from(&page)))
}

/// Delete a conversation with all its files.
///
/// Refused while one of its runs is queued or running.
#[utoipa::path(
    delete, path = "/v1/conversations/{conversationId}", tag = "conversations", operation_id = "deleteConversation",
    responses((status = 204, description = "It was deleted.")),
)]
pub(super) async fn remove(call: Call) -> Reply<StatusCode> {
    no_content(call.parts.runs.remove_conversation(&call.conversation()?).await)
}

/// Install packages into a conversation.
///
/// Its programs and cells find them from then on, including those that run already. The packages are not listed as
/// files, but count towards the quota. An installation that fails changes nothing. It goes on when the client
/// disconnects.
#[utoipa::path(
    post, path = "/v1/conversations/{conversationId}/packages", tag = "conversations", operation_id = "installPackages",
    request_body(content = CreatePackages),
    responses((status = 200, description = "They are installed.", body = InstalledPackages)),
)]
pub(super) async fn install(call: Call, body: RequestBody) -> Answer<InstalledPackages> {
    let conversation = call.conversation()?;
    let CreatePackages { language, packages } = body.json().await?;
    let wanted = InstallRequest { conversation, language: language.unwrap_or_default(), tool: None, packages };
    let installed = call.parts.packages.install(wanted).await?;
    Ok(Json(InstalledPackages::from(&installed)))
}

#[derive(Deserialize, JsonSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListFiles {
    /// Only files below this folder.
    folder: Option<String>,
    /// Only files whose path, below the folder, begins with this.
    prefix: Option<String>,
    /// The `after` of the previous page.
    after: Option<String>,
    /// Maximum number of files; by default, and at most, the server's setting. A page is also bounded in bytes.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 10_000)]
    limit: Option<u64>,
}

impl ListFiles {
    fn checked(&self) -> Result<FileQuery, Failure> {
        if self.limit.is_some_and(|limit| !(1..=LIMIT_MAX).contains(&limit)) {
            return Err(Failure::argument("limit", format!("it must be from 1 to {LIMIT_MAX}")));
        }
        let named = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let (mut argument, mut folder) = ("folder", named(&self.folder));
        let mut prefix = self.prefix.clone().unwrap_or_default();
        if let Some((inner, names)) = prefix.rsplit_once('/') {
            folder = match folder.as_deref() {
                Some(outer) => Some(format!("{}/{inner}", outer.strip_suffix('/').unwrap_or(outer))),
                // What programs call the top.
                None => Some(inner.to_owned()).filter(|inner| !matches!(inner.as_str(), "/data" | ".")),
            };
            (argument, prefix) = ("prefix", names.to_owned());
        }
        let filter = file_filter((argument, folder.as_deref()), ("after", named(&self.after).as_deref()))?;
        let limit = self.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(FileQuery { filter: FileFilter { prefix: prefix.into_bytes(), ..filter }, limit })
    }
}

/// List a conversation's files.
///
/// An unknown conversation or folder has none.
#[utoipa::path(
    get, path = "/v1/conversations/{conversationId}/files", tag = "files", operation_id = "listFiles",
    params(ListFiles),
    responses((status = 200, description = "A page of files, ordered by path.", body = FileListing)),
)]
pub(super) async fn list_files(call: Call<ListFiles>) -> Answer<FileListing> {
    let list = call.parts.files.page(&call.conversation()?, call.query.checked()?).await?;
    Ok(Json(FileListing::from(&list)))
}

/// Read a file.
///
/// Its bytes, unchanged. HTTP ranges and conditions are supported.
#[utoipa::path(
    get, path = "/v1/conversations/{conversationId}/files/{path}", tag = "files", operation_id = "readFile",
    responses(
        // Generators know the first; the second is what a file's name makes of it.
        (status = 200, description = "The file.", content((Binary = "application/octet-stream"), (Binary = "*/*")),
            headers(("etag" = String, description = "Identifies this content."))),
        (status = 206, description = "The requested part.",
            content((Binary = "application/octet-stream"), (Binary = "*/*"))),
        (status = 304, description = "The client has the current version."),
        (status = 412, description = "The condition does not hold.", body = Problem,
            content_type = "application/problem+json"),
        (status = 416, description = "The part begins beyond the end.", body = Problem,
            content_type = "application/problem+json"),
    ),
)]
pub(super) async fn read(call: Call) -> Reply {
    call.download(&call.conversation()?, &call.path()?).await
}

/// Write a file.
///
/// The body is the whole content, of any length that the conversation's quota allows. Folders on the way are made; an
/// existing file is replaced in one step, so that an upload that breaks off changes nothing.
#[utoipa::path(
    put, path = "/v1/conversations/{conversationId}/files/{path}", tag = "files", operation_id = "writeFile",
    params(Conditions),
    request_body(content = Binary, content_type = "application/octet-stream", description = "The whole content, of any \
        kind: the type follows from the name, not from the header."),
    responses(
        (status = 200, description = "It was replaced.", body = File),
        (status = 201, description = "It was made.", body = File),
        (status = 412, description = "The condition does not hold.", body = Problem,
            content_type = "application/problem+json"),
    ),
)]
pub(super) async fn write(call: Call, body: RequestBody) -> Reply {
    let (conversation, path) = (call.conversation()?, call.path()?);
    let condition = downloads::condition(&call.headers);
    let (announced, pieces) = body.stream()?;
    let entry = call.parts.files.upload(&conversation, &path, condition, announced, pieces).await?;
    let status = if entry.change == Change::Created { StatusCode::CREATED } else { StatusCode::OK };
    let mut response = (status, Json(File::from(&entry))).into_response();
    validate(&mut response, &call.parts.files, &conversation, &path, entry.size).await;
    Ok(response)
}

/// Adds the validator of a file that is in place. A program may have removed or replaced it already; then there is none
/// to send.
async fn validate(response: &mut Response, files: &Files, conversation: &ConversationKey, path: &SafePath, size: u64) {
    if let Ok(download) = files.open(conversation, path).await
        && download.size == size
        && let Ok(etag) = HeaderValue::from_str(&download.etag)
    {
        response.headers_mut().insert(header::ETAG, etag);
    }
}

/// Move a file or a folder.
///
/// In one step: programs and other clients find it under the old path or the new one, with the same bytes, time and
/// permissions. Folders on the way are made. A link is moved, not what it points to.
#[utoipa::path(
    post, path = "/v1/conversations/{conversationId}/move", tag = "files", operation_id = "moveFile",
    params(("If-Match" = Option<String>, Header,
        description = "Only if the file that is moved has one of these validators; a folder has none.")),
    request_body(content = MoveFile),
    responses(
        (status = 200, description = "It was moved.", body = Moved,
            headers(("etag" = String, description = "Identifies the file's content."))),
        (status = 409, description = "A folder has the new path, or a file is where a folder should be.",
            body = Problem, content_type = "application/problem+json"),
        (status = 412, description = "A file has the new path, or the condition does not hold.", body = Problem,
            content_type = "application/problem+json"),
    ),
)]
pub(super) async fn rename(call: Call, body: RequestBody) -> Reply {
    let conversation = call.conversation()?;
    let wanted: MoveFile = body.json().await?;
    let (from, to) = wanted.paths()?;
    let condition = downloads::condition_on_source(&call.headers);
    let entry = call.parts.files.rename(&conversation, &from, &to, wanted.replace, condition).await?;
    let mut response = Json(Moved::from((&to, entry.as_ref()))).into_response();
    if let Some(entry) = entry {
        validate(&mut response, &call.parts.files, &conversation, &to, entry.size).await;
    }
    Ok(response)
}

/// Delete a file.
///
/// A link is deleted, not what it points to; a folder with all it holds.
#[utoipa::path(
    delete, path = "/v1/conversations/{conversationId}/files/{path}", tag = "files", operation_id = "deleteFile",
    params(Conditions),
    responses(
        (status = 204, description = "It was deleted."),
        (status = 412, description = "The condition does not hold.", body = Problem,
            content_type = "application/problem+json"),
    ),
)]
pub(super) async fn remove_file(call: Call) -> Reply<StatusCode> {
    no_content(call.parts.files.delete(&call.conversation()?, &call.path()?, downloads::condition(&call.headers)).await)
}

/// Read all files of a conversation as a tar archive.
///
/// It holds plain files only. It is made while it is sent; when the connection ends early, it is incomplete.
#[utoipa::path(
    get, path = "/v1/conversations/{conversationId}/archive", tag = "files", operation_id = "readArchive",
    responses((status = 200, description = "The archive.", content_type = "application/x-tar", body = Binary)),
)]
pub(super) async fn read_archive(call: Call) -> Reply {
    let conversation = call.conversation()?;
    let archive = call.parts.files.archive(&conversation).await?;
    Ok(downloads::archive(&conversation, archive))
}

/// Make a link to all files of a conversation as a tar archive.
///
/// The link downloads the archive without a token. It works for five minutes.
#[utoipa::path(
    post, path = "/v1/conversations/{conversationId}/archive/link", tag = "files", operation_id = "linkArchive",
    responses((status = 200, description = "The link.", body = ArchiveLink)),
)]
pub(super) async fn link_archive(call: Call) -> Answer<ArchiveLink> {
    Ok(Json(call.parts.files.archive_url(&call.conversation()?).await?.into()))
}

/// Write the files of a tar archive into a conversation.
///
/// Only plain files and folders are accepted: the whole archive is checked before the first file is written. Existing
/// files that are not in the archive stay.
#[utoipa::path(
    put, path = "/v1/conversations/{conversationId}/archive", tag = "files", operation_id = "writeArchive",
    request_body(
        content((Binary = "application/x-tar"), (Binary = "application/octet-stream")),
        description = "A plain, uncompressed tar.",
    ),
    responses((status = 200, description = "What was written.", body = Imported)),
)]
pub(super) async fn write_archive(call: Call, body: RequestBody) -> Answer<Imported> {
    let conversation = call.conversation()?;
    let bytes = body.read_as("plain tar", "application/x-tar").await?;
    Ok(Json(call.parts.files.import(&conversation, bytes).await?))
}
