//! Packages of conversations.

use axum::Json;

use super::{call::Call, names::InConversation};
use crate::{
    api::{
        http::{Answer, ApiParts, body::RequestBody},
        schema::packages::{CreatePackages, InstalledPackages},
    },
    services::packages::InstallRequest,
};

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
