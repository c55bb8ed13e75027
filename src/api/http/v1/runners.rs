//! The languages that can be run now.

use axum::{Json, extract::State};

use super::call::Query;
use crate::{
    api::schema::{RunnerList, arguments::Nothing},
    services::runs::Runs,
};

/// List the languages that can be run now.
#[utoipa::path(
    get, path = "/v1/runners", tag = "runners", operation_id = "listRunners",
    responses((status = 200, description = "The languages, ordered by name.", body = RunnerList)),
)]
pub(super) async fn list(State(runs): State<Runs>, _: Query<Nothing>) -> Json<RunnerList> {
    Json(RunnerList::from(&runs))
}
