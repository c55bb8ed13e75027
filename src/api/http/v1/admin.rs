//! What operators see of every owner, and what they end. Needs the scope `admin`, which [`crate::api::http::auth`]
//! checks.

use axum::{Json, extract::State, http::StatusCode};
use schemars::JsonSchema;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    call::{Call, page},
    names::{InRun, InSession, OfOwner},
};
use crate::{
    api::{
        http::{Answer, Reply, no_content},
        schema::{
            admin::{ActivityResult, FindingList, NotableList, OverviewResult, OwnerList, OwnerResult, SizeList},
            history::{HistoryRun, Moment},
        },
    },
    domain::owner::{ConversationKey, Principal},
    ports::history::Notable,
    services::admin::{Admin, SizeCursor, Span},
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

/// List conversations of every owner by size.
///
/// The largest first, a page at a time. What was not measured within a second is measured by the next request.
#[utoipa::path(
    get, path = "/v1/admin/conversations", tag = "admin", operation_id = "listAllConversations",
    params(ListSizes),
    responses((status = 200, description = "A page of conversations.", body = SizeList)),
)]
pub(super) async fn conversations(State(admin): State<Admin>, call: Call<ListSizes>) -> Answer<SizeList> {
    let limit = page(call.query.limit)?;
    let page = admin.conversations(call.query.owner.as_ref(), call.query.cursor.as_ref(), limit).await?;
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
pub(super) async fn runs(State(admin): State<Admin>, call: Call<ListNotable>) -> Answer<NotableList> {
    let which = call.query.which.unwrap_or(Notable::Slowest);
    let from = call.query.from.map_or(0, |from| from.0);
    let lines = admin.notable(which, from, page(call.query.limit)?).await?;
    Ok(Json(NotableList { runs: lines.iter().map(HistoryRun::from).collect() }))
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
