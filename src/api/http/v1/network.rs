//! The connections of the caller's programs.

use axum::{Json, extract::State};
use schemars::JsonSchema;
use serde::Deserialize;
use utoipa::IntoParams;

use super::call::{Call, page};
use crate::{
    api::{
        http::Answer,
        schema::network::{NetworkDecision, NetworkDecisions},
    },
    services::network::Network,
};

#[derive(Deserialize, JsonSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListDecisions {
    /// Maximum number of items; default 50.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200)]
    pub(super) limit: Option<u64>,
}

/// List the newest connections of your programs.
///
/// Those that were made and those that were refused, newest first: the last 500 since the server's start.
#[utoipa::path(
    get, path = "/v1/network/decisions", tag = "network", operation_id = "listNetworkDecisions",
    params(ListDecisions),
    responses((status = 200, description = "The connections.", body = NetworkDecisions)),
)]
pub(super) async fn decisions(State(network): State<Network>, call: Call<ListDecisions>) -> Answer<NetworkDecisions> {
    let newest = network.decisions().newest(&call.who, page(call.query.limit)?);
    Ok(Json(NetworkDecisions { decisions: newest.iter().map(NetworkDecision::from).collect() }))
}
