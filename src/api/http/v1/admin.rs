//! What operators see of every owner, what they end, the tokens that they make, and the clients that are signed in.
//! Needs the scope `admin`, which [`crate::api::http::auth`] checks.

use axum::{
    Json,
    http::{StatusCode, header},
    response::IntoResponse as _,
};
use schemars::JsonSchema;
use serde::Deserialize;
use tracing::info;
use utoipa::IntoParams;

use super::{Call, page};
use crate::{
    api::{
        http::{Answer, ApiCall, Path, Reply, RequestBody, no_content},
        schema::{
            admin::{ActivityResult, FindingList, NotableList, OverviewResult, OwnerList, SizeList},
            history::{Day, HistoryList, Moment, UsageList},
            token::{ConnectionList, CreateToken, TokenCreated, TokenList},
        },
    },
    domain::{Code, ConversationId, ConversationKey, Failure, Language, Principal, RunId, TokenId},
    ports::history::{EndWord, LineFilter, Notable, UsageFilter},
    services::{
        admin::{SizeCursor, Span},
        tokens::NewToken,
    },
};

#[derive(Deserialize, JsonSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct OfActivity {
    /// The period; default `hour`.
    #[param(value_type = Option<crate::api::schema::SpanWord>)]
    span: Option<Span>,
}

#[derive(Deserialize, JsonSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListSizes {
    /// Only those of this owner.
    #[param(value_type = Option<String>, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$", min_length = 1, max_length = 64)]
    owner: Option<Principal>,
    /// The `cursor` of the previous page.
    #[param(value_type = Option<String>,
        pattern = "^([0-9]{1,15})?[.][A-Za-z0-9][A-Za-z0-9._-]{0,63}/[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
    cursor: Option<SizeCursor>,
    /// Maximum number of items; default 50.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200)]
    limit: Option<u64>,
}

#[derive(Deserialize, JsonSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListNotable {
    /// `slowest`: the runs that took longest, waiting included. `failing`: the newest runs that neither ended with
    /// status 0 nor were cancelled. Default `slowest`.
    #[param(value_type = Option<crate::api::schema::NotableWord>)]
    which: Option<Notable>,
    /// Only those that were created at this moment or later (RFC 3339).
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<Moment>,
    /// Maximum number of items; default 50.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200)]
    limit: Option<u64>,
}

/// List every owner.
///
/// An owner is listed when a token or a folder names it. Needs the scope `admin`.
#[utoipa::path(
    get, path = "/v1/owners", tag = "admin", operation_id = "listOwners",
    responses((status = 200, description = "The owners.", body = OwnerList)),
)]
pub(super) async fn owners(call: Call) -> Answer<OwnerList> {
    Ok(Json(OwnerList::from(&call.parts.admin.owners().await?)))
}

/// Show the current activity.
///
/// Runs, sessions, the queue and standbys of all owners in this server's process.
#[utoipa::path(
    get, path = "/v1/admin/overview", tag = "admin", operation_id = "getOverview",
    responses((status = 200, description = "The current activity.", body = OverviewResult)),
)]
pub(super) async fn overview(call: Call) -> Json<OverviewResult> {
    Json(OverviewResult::from(&call.parts.admin.overview()))
}

/// Show the last hour or day.
///
/// Counts by minute or quarter of an hour, of all owners.
#[utoipa::path(
    get, path = "/v1/admin/activity", tag = "admin", operation_id = "getActivity",
    params(OfActivity),
    responses((status = 200, description = "The counts.", body = ActivityResult)),
)]
pub(super) async fn activity(call: Call<OfActivity>) -> Json<ActivityResult> {
    Json(ActivityResult::from(&call.parts.admin.activity(call.query.span.unwrap_or(Span::Hour)).await))
}

/// Check the server and its machine.
///
/// The same as `mcp-sandbox-server doctor`; it starts sandboxes and takes some seconds. One check at a time.
#[utoipa::path(
    get, path = "/v1/admin/doctor", tag = "admin", operation_id = "checkServer",
    responses((status = 200, description = "What was found.", body = FindingList)),
)]
pub(super) async fn doctor(call: Call) -> Answer<FindingList> {
    Ok(Json(call.parts.admin.check(&call.who).await?.into()))
}

/// List conversations of every owner by size.
///
/// The largest first, a page at a time. What was not measured within a second is measured by the next request.
#[utoipa::path(
    get, path = "/v1/admin/conversations", tag = "admin", operation_id = "listAllConversations",
    params(ListSizes),
    responses((status = 200, description = "A page of conversations.", body = SizeList)),
)]
pub(super) async fn conversations(call: Call<ListSizes>) -> Answer<SizeList> {
    let limit = page(call.query.limit)?;
    let page = call.parts.admin.conversations(call.query.owner.as_ref(), call.query.cursor.as_ref(), limit).await?;
    Ok(Json(SizeList::from(&page)))
}

/// List runs of every owner that are slow, or failed.
///
/// From the history.
#[utoipa::path(
    get, path = "/v1/admin/runs", tag = "admin", operation_id = "listNotableRuns",
    params(ListNotable),
    responses((status = 200, description = "The runs.", body = NotableList)),
)]
pub(super) async fn runs(call: Call<ListNotable>) -> Answer<NotableList> {
    let which = call.query.which.unwrap_or(Notable::Slowest);
    let from = call.query.from.map_or(0, |from| from.0);
    Ok(Json(NotableList::from(&*call.parts.history.notable(which, from, page(call.query.limit)?).await?)))
}

/// Stop a run of any owner.
///
/// It ends soon after; a finished run is not changed.
#[utoipa::path(
    post, path = "/v1/admin/runs/{runId}/cancel", tag = "admin", operation_id = "cancelAnyRun",
    responses((status = 204, description = "It is being cancelled, or had ended.")),
)]
pub(super) async fn cancel(call: Call) -> Reply<StatusCode> {
    no_content(call.parts.admin.cancel(&call.who, call.name(4, "runId")?))
}

/// End a session of any owner.
///
/// Its interpreter and its variables are gone; the files stay.
#[utoipa::path(
    delete, path = "/v1/admin/sessions/{sessionId}", tag = "admin", operation_id = "endAnySession",
    responses((status = 204, description = "It has ended.")),
)]
pub(super) async fn end_session(call: Call) -> Reply<StatusCode> {
    no_content(call.parts.admin.end_session(&call.who, call.name(4, "sessionId")?))
}

/// Delete a conversation of any owner with all its files.
///
/// Refused while one of its runs is queued or running.
#[utoipa::path(
    delete, path = "/v1/admin/conversations/{owner}/{conversationId}", tag = "admin",
    operation_id = "deleteAnyConversation",
    responses((status = 204, description = "It was deleted.")),
)]
pub(super) async fn remove_conversation(call: Call) -> Reply<StatusCode> {
    let key = ConversationKey::new(call.name(4, "owner")?, call.name(5, "conversationId")?);
    no_content(call.parts.admin.remove_conversation(&call.who, &key).await)
}

/// Sums in one answer.
const USAGE_MAX: usize = 10_000;

#[derive(Deserialize, JsonSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListHistory {
    /// Only those of this owner.
    #[param(value_type = Option<String>, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$", min_length = 1, max_length = 64)]
    owner: Option<Principal>,
    /// Only those of conversations with this id.
    #[param(value_type = Option<String>, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$", min_length = 1, max_length = 128)]
    conversation: Option<ConversationId>,
    /// Only those in this language, by its own name.
    #[param(value_type = Option<String>, pattern = "^[A-Za-z0-9][A-Za-z0-9._+#-]*$", min_length = 1, max_length = 32)]
    language: Option<Language>,
    /// Only those that ended like this.
    #[param(value_type = Option<crate::api::schema::EndedWord>)]
    ended: Option<EndWord>,
    /// Only those that were created at this moment or later (RFC 3339).
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<Moment>,
    /// Only those that were created before this moment (RFC 3339).
    #[param(value_type = Option<String>, format = DateTime)]
    to: Option<Moment>,
    /// The `cursor` of the previous page.
    #[param(value_type = Option<String>, pattern = "^run-[0-9a-f]{32}$")]
    cursor: Option<RunId>,
    /// Maximum number of items; default 50.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200)]
    limit: Option<u64>,
}

#[derive(Deserialize, JsonSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListUsage {
    /// Only that of this owner.
    #[param(value_type = Option<String>, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$", min_length = 1, max_length = 64)]
    owner: Option<Principal>,
    /// The first day, in UTC.
    #[param(value_type = Option<String>, format = Date)]
    from: Option<Day>,
    /// The last day, in UTC.
    #[param(value_type = Option<String>, format = Date)]
    to: Option<Day>,
}

/// List what was run, newest first.
///
/// Runs and cells of all owners, also from before a restart. Needs the scope `admin`.
#[utoipa::path(
    get, path = "/v1/history", tag = "history", operation_id = "listHistory",
    params(ListHistory),
    responses((status = 200, description = "A page of the history.", body = HistoryList)),
)]
pub(super) async fn history(call: Call<ListHistory>) -> Answer<HistoryList> {
    let ListHistory { owner, conversation, language, ended, from, to, cursor: after, limit } = call.query;
    let (limit, from, to) = (page(limit)?, from.map(|from| from.0), to.map(|to| to.0));
    let filter = LineFilter { owner, conversation, language, ended, from, to, after };
    Ok(Json(HistoryList::from(&call.api.parts.history.page(&filter, limit).await?)))
}

/// Sum up what was used.
///
/// By day, owner and language, since the database was created. Needs the scope `admin`.
#[utoipa::path(
    get, path = "/v1/usage", tag = "history", operation_id = "listUsage",
    params(ListUsage),
    responses((status = 200, description = "The usage, at most 10000 sums.", body = UsageList)),
)]
pub(super) async fn usage(call: Call<ListUsage>) -> Answer<UsageList> {
    let ListUsage { owner, from, to } = call.query;
    let filter = UsageFilter { owner, from: from.map(|from| from.0), to: to.map(|to| to.0) };
    let (lines, truncated) = call.api.parts.history.usage(&filter, USAGE_MAX).await?;
    Ok(Json((&*lines, truncated).into()))
}

#[derive(Deserialize, JsonSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListTokens {
    /// Only those of this owner.
    #[param(value_type = Option<String>, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$", min_length = 1, max_length = 64)]
    owner: Option<Principal>,
}

/// Make a token.
///
/// It is shown in this answer only. Requests with it act for its owner, within its scopes and limits.
#[utoipa::path(
    post, path = "/v1/tokens", tag = "tokens", operation_id = "createToken",
    request_body(content = CreateToken),
    responses((status = 201, description = "The token.", body = TokenCreated)),
)]
pub(super) async fn create_token(call: Call, body: RequestBody) -> Reply {
    let create: CreateToken = body.json().await?;
    let grant = create.grant()?;
    let expires_unix_ms = create.expires()?.map(|left| call.parts.tokens.in_seconds(left));
    let owner = create.owner.unwrap_or_default();
    let (record, token) = call
        .parts
        .admin
        .create_token(&call.who, NewToken { owner, name: create.name, grant, expires_unix_ms, parent: None })
        .await?;
    info!(token = %record.id, owner = record.owner.name(), by = call.who.name(), "a token was made");
    let created = Json(TokenCreated::from((&record, &token)));
    Ok((StatusCode::CREATED, [(header::CACHE_CONTROL, "no-store")], created).into_response())
}

/// List the tokens.
///
/// Newest first: of one owner or of all, those that have ended within the last 30 days too. The configured token is not
/// among them.
#[utoipa::path(
    get, path = "/v1/tokens", tag = "tokens", operation_id = "listTokens",
    params(ListTokens),
    responses((status = 200, description = "The tokens.", body = TokenList)),
)]
pub(super) async fn list_tokens(call: Call<ListTokens>) -> Answer<TokenList> {
    Ok(Json(TokenList::from(&*call.parts.tokens.list(call.query.owner.as_ref()).await?)))
}

/// Revoke a token.
///
/// At once: its streams end, its programs are cancelled, its sessions are closed.
#[utoipa::path(
    delete, path = "/v1/tokens/{tokenId}", tag = "tokens", operation_id = "revokeToken",
    responses((status = 204, description = "It is revoked.")),
)]
pub(super) async fn revoke_token(call: Call) -> Reply<StatusCode> {
    let id: TokenId = call.name(3, "tokenId")?;
    call.parts.admin.revoke_token(&call.who, id).await?;
    info!(token = %id, by = call.who.name(), "a token was revoked");
    Ok(StatusCode::NO_CONTENT)
}

/// List the clients that are signed in.
///
/// The list is empty where sign-in is off.
#[utoipa::path(
    get, path = "/v1/connections", tag = "connections", operation_id = "listConnections",
    responses((status = 200, description = "The clients of all owners.", body = ConnectionList)),
)]
pub(super) async fn connections(call: ApiCall) -> Answer<ConnectionList> {
    Ok(Json(ConnectionList::from(&*call.parts.admin.connections().await?)))
}

/// End a connection.
///
/// Its tokens stop working at once, and its streams, programs and sessions end. The tokens of a subject of another
/// issuer are refused until it is allowed.
#[utoipa::path(
    delete, path = "/v1/connections/{connectionId}", tag = "connections", operation_id = "endConnection",
    responses((status = 204, description = "It has ended.")),
)]
pub(super) async fn end_connection(call: ApiCall, Path(id): Path<String>) -> Reply<StatusCode> {
    let none = || Failure::new(Code::TokenNotFound, "There is no such connection, or it was revoked before.");
    let id: TokenId = id.parse().map_err(|_| none())?;
    no_content(call.parts.admin.disconnect(&call.who, id).await)
}

/// Allow a subject of another issuer that was ended.
///
/// Its tokens are accepted again, including earlier ones that have not expired.
#[utoipa::path(
    post, path = "/v1/connections/{connectionId}/allow", tag = "connections", operation_id = "allowSubject",
    responses((status = 204, description = "It is allowed.")),
)]
pub(super) async fn allow_subject(call: ApiCall, Path(id): Path<String>) -> Reply<StatusCode> {
    let none = || Failure::new(Code::TokenNotFound, "There is no such subject that is refused.");
    no_content(call.parts.admin.allow(&call.who, id.parse().map_err(|_| none())?).await)
}
