//! What operators see of every owner, and what they end. Needs the scope `admin`, which [`crate::api::http::auth`]
//! checks.

mod listed;
mod network;

use axum::{Json, extract::State, http::StatusCode};
use schemars::JsonSchema;
use serde::Deserialize;
use utoipa::IntoParams;

pub(super) use self::{listed::*, network::*};
use super::{
    call::Call,
    names::{InRun, InSession, OfOwner},
};
use crate::{
    api::{
        http::{Answer, Reply, no_content},
        schema::admin::{ActivityResult, FindingList, OverviewResult, OwnerList, OwnerResult},
    },
    domain::owner::ConversationKey,
    services::admin::{Admin, Span},
};

#[derive(Deserialize, JsonSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct OfActivity {
    /// The period; default `hour`.
    #[param(value_type = Option<crate::api::schema::SpanWord>)]
    span: Option<Span>,
}

/// List every owner.
///
/// An owner is listed when a token or a folder names it. Needs the scope `admin`.
#[utoipa::path(
    get, path = "/v1/owners", tag = "admin", operation_id = "listOwners",
    responses((status = 200, description = "The owners.", body = OwnerList)),
)]
pub(super) async fn owners(State(admin): State<Admin>, _: Call) -> Answer<OwnerList> {
    let owners = admin.owners().await?;
    Ok(Json(OwnerList { owners: owners.iter().map(OwnerResult::from).collect() }))
}

/// Show the current activity.
///
/// Runs, sessions, the queue and standbys of all owners in this server's process.
#[utoipa::path(
    get, path = "/v1/admin/overview", tag = "admin", operation_id = "getOverview",
    responses((status = 200, description = "The current activity.", body = OverviewResult)),
)]
pub(super) async fn overview(State(admin): State<Admin>, _: Call) -> Json<OverviewResult> {
    Json(OverviewResult::from(&admin.overview()))
}

/// Show the last hour or day.
///
/// Counts by minute or quarter of an hour, of all owners.
#[utoipa::path(
    get, path = "/v1/admin/activity", tag = "admin", operation_id = "getActivity",
    params(OfActivity),
    responses((status = 200, description = "The counts.", body = ActivityResult)),
)]
pub(super) async fn activity(State(admin): State<Admin>, call: Call<OfActivity>) -> Json<ActivityResult> {
    Json(ActivityResult::from(&admin.activity(call.query.span.unwrap_or(Span::Hour)).await))
}

/// Check the server and its machine.
///
/// The same as `mcp-sandbox-server doctor`; it starts sandboxes and takes some seconds. One check at a time.
#[utoipa::path(
    get, path = "/v1/admin/doctor", tag = "admin", operation_id = "checkServer",
    responses((status = 200, description = "What was found.", body = FindingList)),
)]
pub(super) async fn doctor(State(admin): State<Admin>, call: Call) -> Answer<FindingList> {
    Ok(Json(FindingList { findings: admin.check(&call.who).await? }))
}

/// Stop a run of any owner.
///
/// It ends soon after; a finished run is not changed.
#[utoipa::path(
    post, path = "/v1/admin/runs/{runId}/cancel", tag = "admin", operation_id = "cancelAnyRun",
    params(InRun),
    responses((status = 204, description = "It is being cancelled, or had ended.")),
)]
pub(super) async fn cancel(State(admin): State<Admin>, call: Call) -> Reply<StatusCode> {
    no_content(admin.cancel(&call.who, call.name(4, "runId")?))
}

/// End a session of any owner.
///
/// Its interpreter and its variables are gone; the files stay.
#[utoipa::path(
    delete, path = "/v1/admin/sessions/{sessionId}", tag = "admin", operation_id = "endAnySession",
    params(InSession),
    responses((status = 204, description = "It has ended.")),
)]
pub(super) async fn end_session(State(admin): State<Admin>, call: Call) -> Reply<StatusCode> {
    no_content(admin.end_session(&call.who, call.name(4, "sessionId")?))
}

/// Delete a conversation of any owner with all its files.
///
/// Refused while one of its runs is queued or running.
#[utoipa::path(
    delete, path = "/v1/admin/conversations/{owner}/{conversationId}", tag = "admin",
    operation_id = "deleteAnyConversation",
    params(OfOwner),
    responses((status = 204, description = "It was deleted.")),
)]
pub(super) async fn remove_conversation(State(admin): State<Admin>, call: Call) -> Reply<StatusCode> {
    let key = ConversationKey::new(call.name(4, "owner")?, call.name(5, "conversationId")?);
    no_content(admin.remove_conversation(&call.who, &key).await)
}
