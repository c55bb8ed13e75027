//! OpenAI's containers and their files. A container is a conversation here. In OpenAI's API only a model can run code
//! in a container, so programs run in it by this server's own interfaces, with the container's id as `conversationId`.
//! The id of a file is derived from its path, so nothing is stored for this surface.

use axum::{
    Json, Router,
    http::{StatusCode, Uri},
    routing::{get, post},
};
use multer::Constraints;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Answer, ApiCall, ApiError, ApiParts, Form, Path, Query, Reply, RequestBody, Room, listed, multipart,
    parts::check_rules,
};
use crate::{
    domain::{Code, ConversationId, ConversationKey, Failure, FileEntry, RunId, SafePath, text::sha256},
    services::containers::{Container, ContainerApi},
};

/// Where the surface is.
pub const ROOT: &str = "/openai/v1";

/// OpenAI's default and greatest time without use, in minutes.
const MINUTES_MAX: i64 = 20;
const NAME_CHARS_MAX: usize = 256;
const BODY_BYTES_MAX: usize = 64 << 10;
const PAGE_DEFAULT: usize = 20;
const PAGE_MAX: usize = 100;
/// Members of a form that are read.
const MEMBERS_MAX: usize = 8;

/// OpenAI's word for the kind of an error.
pub fn error_type(status: StatusCode) -> &'static str {
    match status.as_u16() {
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    }
}

/// The routes. They must be mounted behind a middleware that puts a `Principal` into the request's extensions.
pub fn router(parts: ApiParts) -> Router {
    let routes = Router::new()
        .route("/containers", post(create).get(list))
        .route("/containers/{id}", get(retrieve).delete(remove))
        .route("/containers/{id}/files", post(create_file).get(list_files))
        .route("/containers/{id}/files/{file}", get(retrieve_file).delete(remove_file))
        .route("/containers/{id}/files/{file}/content", get(content))
        .with_state(parts);
    Router::new().nest(ROOT, routes)
}

#[derive(Deserialize, JsonSchema)]
struct Create {
    name: String,
    expires_after: Option<ExpiresAfter>,
    file_ids: Option<Vec<String>>,
    network_policy: Option<NetworkPolicy>,
    skills: Option<Vec<Value>>,
}

#[derive(Deserialize, JsonSchema)]
struct ExpiresAfter {
    minutes: i64,
}

#[derive(Deserialize, JsonSchema)]
struct NetworkPolicy {
    #[serde(rename = "type")]
    kind: String,
}

/// A page of a list, whose order is the newest first unless `order` is `asc`.
#[derive(Deserialize)]
struct PageQuery {
    limit: Option<usize>,
    after: Option<String>,
    order: Option<String>,
    name: Option<String>,
}

async fn create(call: ApiCall, body: RequestBody) -> Answer<Value> {
    let body = body.at_most(BODY_BYTES_MAX);
    let Create { name, expires_after, file_ids, network_policy, skills } = body.lenient().await?;
    let minutes = expires_after.map_or(MINUTES_MAX, |after| after.minutes);
    let is_open = network_policy.is_some_and(|policy| policy.kind != "disabled");
    check_rules([
        ("name", name.chars().count() > NAME_CHARS_MAX, "it is longer than 256 characters"),
        ("expires_after.minutes", !(1..=MINUTES_MAX).contains(&minutes), "it must be from 1 to 20"),
        ("file_ids", file_ids.is_some_and(|ids| !ids.is_empty()), "there is no /files here: upload to the container"),
        ("network_policy", is_open, "the operator decides it: it must be absent or disabled"),
        ("skills", skills.is_some_and(|skills| !skills.is_empty()), "a container takes none"),
    ])?;
    let key = call.key(ConversationId::of_run("cntr_", RunId::new()));
    let container = call.parts.containers.create(&key, ContainerApi::OpenAi, minutes * 60, |container| {
        container.name = name;
        container.idle_s = Some(minutes * 60);
    })?;
    Ok(Json(shown(&container)))
}

async fn list(call: ApiCall, Query(query): Query<PageQuery>) -> Answer<Value> {
    Ok(Json(query.containers(call.parts.containers.list(&call.who, ContainerApi::OpenAi).iter().map(shown).collect())?))
}

/// The page that an address asks for, of the containers of several servers.
pub(super) fn page_of(uri: &Uri, all: Vec<Value>) -> Result<Value, ApiError> {
    Ok(Query::<PageQuery>::of(uri)?.0.containers(all)?)
}

async fn retrieve(call: ApiCall, Path(id): Path<String>) -> Answer<Value> {
    Ok(Json(shown(&named(&call, &id)?)))
}

async fn remove(call: ApiCall, Path(id): Path<String>) -> Answer<Value> {
    let key = named(&call, &id)?.key;
    call.parts.containers.remove(&key, ContainerApi::OpenAi).await?;
    Ok(Json(json!({"id": id, "object": "container.deleted", "deleted": true})))
}

fn named(call: &ApiCall, id: &str) -> Result<Container, Failure> {
    let missing = || Failure::new(Code::ConversationNotFound, "There is no such container, or it expired.");
    let id = id.parse().map_err(|_| missing())?;
    call.parts.containers.get(&call.key(id), ContainerApi::OpenAi).map_err(|_| missing())
}

impl PageQuery {
    fn containers(&self, mut all: Vec<Value>) -> Result<Value, Failure> {
        all.retain(|one| self.name.as_ref().is_none_or(|name| one["name"] == *name));
        self.page(all)
    }

    /// Of items that are newest first, as many as one answer holds.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for `after`, since an empty page would be taken for the end of the list.
    fn page(&self, mut items: Vec<Value>) -> Result<Value, Failure> {
        if self.order.as_deref() == Some("asc") {
            items.reverse();
        }
        if let Some(after) = &self.after {
            let at = items.iter().position(|item| item["id"] == *after);
            let at = at.ok_or_else(|| Failure::argument("after", "the list has no item with this id"))?;
            items.drain(..=at);
        }
        let limit = self.limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX);
        let mut room = Room::default();
        let fits = items.iter().take(limit).take_while(|item| room.takes(item)).count();
        let has_more = items.len() > fits;
        items.truncate(fits);
        let id = |item: Option<&Value>| item.map(|item| item["id"].clone());
        Ok(json!({"object": "list", "first_id": id(items.first()), "last_id": id(items.last()), "has_more": has_more,
            "data": items}))
    }
}

fn shown(container: &Container) -> Value {
    json!({
        "id": container.key.id.as_str(),
        "object": "container",
        "name": container.name,
        "created_at": container.created_unix_s,
        "last_active_at": container.active_unix_s,
        "status": "running",
        "expires_after": {"anchor": "last_active_at", "minutes": container.idle_s.unwrap_or_default() / 60},
    })
}

/// Writes the file of a form.
async fn create_file(call: ApiCall, Path(id): Path<String>, body: RequestBody) -> Answer<Value> {
    let key = named(&call, &id)?.key;
    let why = "there is no /files here: send the file as multipart/form-data";
    let boundary = body.boundary().ok_or_else(|| Failure::argument("file_id", why))?;
    let mut form = Form::new(body, boundary, Constraints::new())?;
    for _ in 0..MEMBERS_MAX {
        let Some(field) = form.next_field().await? else { break };
        let Some(name) = field.file_name() else { continue };
        let path = SafePath::from_text(name).map_err(|why| Failure::argument("file", why))?;
        let entry = call.parts.files.upload(&key, &path, None, None, multipart::pieces(field)).await?;
        return Ok(Json(file_shown(&key, &entry)));
    }
    Err(Failure::argument("file", "it is missing: send the file").into())
}

/// A page of the files, the newest first. Files that no page has are left out with the header of [`listed::answer`].
async fn list_files(call: ApiCall, Path(id): Path<String>, Query(query): Query<PageQuery>) -> Reply {
    let key = named(&call, &id)?.key;
    let mut entries = Vec::new();
    let visited_all = call.parts.files.visit(&key, None, |file| entries.push(file)).await?;
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.modified_unix_s));
    let page = query.page(entries.iter().map(|entry| file_shown(&key, entry)).collect())?;
    Ok(listed::answer(page, visited_all))
}

async fn retrieve_file(call: ApiCall, Path(ids): Path<(String, String)>) -> Answer<Value> {
    let (key, entry) = find(&call, ids).await?;
    Ok(Json(file_shown(&key, &entry)))
}

async fn content(call: ApiCall, Path(ids): Path<(String, String)>) -> Reply {
    let (key, entry) = find(&call, ids).await?;
    call.download(&key, &entry.path).await
}

async fn remove_file(call: ApiCall, Path(ids): Path<(String, String)>) -> Answer<Value> {
    let (key, entry) = find(&call, ids).await?;
    call.parts.files.delete(&key, &entry.path, None).await?;
    Ok(Json(json!({"id": file_id(&entry.path), "object": "container.file.deleted", "deleted": true})))
}

async fn find(call: &ApiCall, (id, file): (String, String)) -> Result<(ConversationKey, FileEntry), Failure> {
    let key = named(call, &id)?.key;
    let found = call.parts.files.find(&key, |entry| file_id(&entry.path) == file).await?;
    let found = found.ok_or_else(|| Failure::new(Code::FileNotFound, "There is no such file in this container."))?;
    Ok((key, found))
}

fn file_id(path: &SafePath) -> String {
    format!("cfile_{}", &sha256(path.as_bytes())[..32])
}

fn file_shown(key: &ConversationKey, entry: &FileEntry) -> Value {
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
