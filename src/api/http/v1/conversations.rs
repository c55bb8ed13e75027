//! Conversations: listing, deletion, and the packages that are installed in them.

use axum::{Json, extract::State, http::StatusCode};
use schemars::JsonSchema;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    call::{Call, page},
    names::InConversation,
};
use crate::{
    api::{
        http::{Answer, ApiParts, Reply, body::RequestBody, no_content},
        schema::{
            ConversationList,
            packages::{CreatePackages, InstalledPackages},
        },
    },
    domain::id::ConversationId,
    services::{conversations::Conversations, packages::InstallRequest},
};

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
pub(super) async fn list(parts: ApiParts, call: Call<ListConversations>) -> Answer<ConversationList> {
    let page = parts.conversations.list(&call.who, call.query.after, page(call.query.limit)?).await?;
    Ok(Json(ConversationList::from(&page)))
}

/// Delete a conversation with all its files.
///
/// Refused while one of its runs is queued or running.
#[utoipa::path(
    delete, path = "/v1/conversations/{conversationId}", tag = "conversations", operation_id = "deleteConversation",
    params(InConversation),
    responses((status = 204, description = "It was deleted.")),
)]
pub(super) async fn remove(State(conversations): State<Conversations>, call: Call) -> Reply<StatusCode> {
    no_content(conversations.remove(&call.conversation()?).await)
}

/// Install packages into a conversation.
///
/// Its programs and cells find them from then on, including those that run already. The packages are not listed as
/// files, but count towards the quota. An installation that fails changes nothing. It goes on when the client
/// disconnects.
#[utoipa::path(
    post, path = "/v1/conversations/{conversationId}/packages", tag = "conversations", operation_id = "installPackages",
    params(InConversation),
    request_body(content = CreatePackages),
    responses((status = 200, description = "They are installed.", body = InstalledPackages)),
)]
pub(super) async fn install(parts: ApiParts, call: Call, body: RequestBody) -> Answer<InstalledPackages> {
    let conversation = call.conversation()?;
    let CreatePackages { language, packages } = body.json().await?;
    let wanted = InstallRequest { conversation, language: language.unwrap_or_default(), tool: None, packages };
    let installed = parts.packages.install(wanted, |_| {}).await?;
    Ok(Json(InstalledPackages::from(&installed)))
}
