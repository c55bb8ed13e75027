//! Conversations: which there are, and the end of one.

use axum::{Json, extract::State, http::StatusCode};

use super::call::Call;
use crate::{
    api::{http::failure::Refused, schema::ConversationList},
    services::conversations::Conversations,
};

/// List the conversations that have files, in the order of their names.
#[utoipa::path(
    get, path = "/v1/conversations", tag = "conversations", operation_id = "listConversations",
    params(
        ("after" = Option<String>, Query, description = "The `after` of the page before.",
            pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$", min_length = 1, max_length = 128),
        ("limit" = Option<u32>, Query, description = "How many at most; 50 where it is not said.",
            minimum = 1, maximum = 200),
    ),
    responses((status = 200, description = "A page of conversations.", body = ConversationList)),
)]
pub(super) async fn list(
    State(conversations): State<Conversations>,
    call: Call,
) -> Result<Json<ConversationList>, Refused> {
    let query = call.query(&["after", "limit"])?;
    let page = conversations.list(&call.who, query.get("after")?, query.limit()?).await?;
    Ok(Json(ConversationList::from(&page)))
}

/// Delete a conversation with all its files.
///
/// Refused while a run is going on or waits in it.
#[utoipa::path(
    delete, path = "/v1/conversations/{conversationId}", tag = "conversations", operation_id = "deleteConversation",
    params(("conversationId" = String, Path, description = "Which.",
        pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$", min_length = 1, max_length = 128)),
    responses((status = 204, description = "It is gone.")),
)]
pub(super) async fn remove(State(conversations): State<Conversations>, call: Call) -> Result<StatusCode, Refused> {
    call.query(&[])?;
    conversations.remove(&call.conversation()?).await?;
    Ok(StatusCode::NO_CONTENT)
}
