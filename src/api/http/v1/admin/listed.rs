//! Lists over all owners: conversations by size, and runs that are slow or failed.

use axum::{Json, extract::State};
use schemars::JsonSchema;
use serde::Deserialize;
use utoipa::IntoParams;

use super::super::call::{Call, page};
use crate::{
    api::{
        http::Answer,
        schema::{
            admin::{NotableList, SizeList},
            history::{HistoryRun, Moment},
        },
    },
    domain::owner::Principal,
    ports::history::Notable,
    services::admin::{Admin, SizeCursor},
};

#[derive(Deserialize, JsonSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub(in super::super) struct ListSizes {
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
pub(in super::super) struct ListNotable {
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

/// List conversations of every owner by size.
///
/// The largest first, a page at a time. What was not measured within a second is measured by the next request.
#[utoipa::path(
    get, path = "/v1/admin/conversations", tag = "admin", operation_id = "listAllConversations",
    params(ListSizes),
    responses((status = 200, description = "A page of conversations.", body = SizeList)),
)]
pub(in super::super) async fn conversations(State(admin): State<Admin>, call: Call<ListSizes>) -> Answer<SizeList> {
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
pub(in super::super) async fn runs(State(admin): State<Admin>, call: Call<ListNotable>) -> Answer<NotableList> {
    let which = call.query.which.unwrap_or(Notable::Slowest);
    let from = call.query.from.map_or(0, |from| from.0);
    let lines = admin.notable(which, from, page(call.query.limit)?).await?;
    Ok(Json(NotableList { runs: lines.iter().map(HistoryRun::from).collect() }))
}
