//! The network access of programs: the connections that they made, and the policies. An operator, with the scope
//! `admin`, sees those of every owner and changes policies.

use axum::{Json, extract::State, http::StatusCode};
use schemars::JsonSchema;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    call::{Call, page},
    names::OfPolicy,
};
use crate::{
    api::{
        http::{Answer, Reply, body::RequestBody, no_content},
        schema::network::{
            NetworkDecision, NetworkDecisions, OwnedDecision, OwnedDecisions, PolicyBody, PolicyList, PolicyResult,
        },
    },
    services::{admin::Admin, network::Network},
};

#[derive(Deserialize, JsonSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListDecisions {
    /// Maximum number of items; default 50.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200)]
    limit: Option<u64>,
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

/// List the network policies.
///
/// Those in the server's settings, and those that operators made.
#[utoipa::path(
    get, path = "/v1/admin/network", tag = "admin", operation_id = "listNetworkPolicies",
    responses((status = 200, description = "The policies.", body = PolicyList)),
)]
pub(super) async fn policies(State(admin): State<Admin>, _: Call) -> Json<PolicyList> {
    let policies = admin.policies();
    let all = policies.all();
    let results = all.iter().map(|policy| PolicyResult::new(policy, policies.is_configured(&policy.name)));
    Json(PolicyList { policies: results.collect() })
}

/// List the newest connections of all programs.
///
/// Those that were made and those that were refused, newest first, of every owner.
#[utoipa::path(
    get, path = "/v1/admin/network-decisions", tag = "admin", operation_id = "listNetworkDecisionsOfAll",
    params(ListDecisions),
    responses((status = 200, description = "The connections.", body = OwnedDecisions)),
)]
pub(super) async fn all_decisions(State(network): State<Network>, call: Call<ListDecisions>) -> Answer<OwnedDecisions> {
    let newest = network.decisions().newest_of_all(page(call.query.limit)?);
    Ok(Json(OwnedDecisions { decisions: newest.iter().map(OwnedDecision::from).collect() }))
}

/// Make or change a network policy.
///
/// It applies from the next connection on, in running programs too. A policy of the server's settings cannot be changed
/// here.
#[utoipa::path(
    put, path = "/v1/admin/network/{name}", tag = "admin", operation_id = "putNetworkPolicy",
    params(OfPolicy),
    request_body(content = PolicyBody),
    responses((status = 204, description = "It is in force.")),
)]
pub(super) async fn put_policy(State(admin): State<Admin>, call: Call, body: RequestBody) -> Reply<StatusCode> {
    let name: String = call.name(4, "name")?;
    let policy: PolicyBody = body.json().await?;
    no_content(admin.put_policy(&call.who, &name, &policy.text()?).await)
}

/// Delete a network policy.
///
/// Programs make no new connections by it; open connections go on.
#[utoipa::path(
    delete, path = "/v1/admin/network/{name}", tag = "admin", operation_id = "deleteNetworkPolicy",
    params(OfPolicy),
    responses((status = 204, description = "It is deleted.")),
)]
pub(super) async fn remove_policy(State(admin): State<Admin>, call: Call) -> Reply<StatusCode> {
    let name: String = call.name(4, "name")?;
    no_content(admin.remove_policy(&call.who, &name).await)
}
