//! The languages that can be run now.

use axum::{Json, extract::State};

use super::call::Call;
use crate::{
    api::{http::failure::Refused, schema::RunnerList},
    services::runs::Runs,
};

/// List the languages that can be run now.
#[utoipa::path(
    get, path = "/v1/runners", tag = "runners", operation_id = "listRunners",
    responses((status = 200, description = "The languages, ordered by name.", body = RunnerList)),
)]
pub(super) async fn list(State(runs): State<Runs>, call: Call) -> Result<Json<RunnerList>, Refused> {
    call.query(&[])?;
    Ok(Json(RunnerList::from(&runs)))
}
