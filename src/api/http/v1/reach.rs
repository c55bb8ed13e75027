//! What programs may reach: the network, by policies, and tools of MCP servers, by rules and by answers to questions
//! about calls. An operator, with the scope `admin`, sees what programs of every owner did and changes both.

use axum::{Json, http::StatusCode};
use schemars::JsonSchema;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{Call, page};
use crate::{
    api::{
        http::{Answer, Reply, RequestBody, no_content},
        schema::{
            network::{NetworkDecisions, OwnedDecisions, PolicyBody, PolicyList},
            tools::{
                AnswerBody, ApprovalList, ApprovalResult, SearchTools, ToolServerBody, ToolServerList,
                ToolServerStates, ToolSource, found_limit,
            },
        },
    },
    domain::{Code, Failure, Scope, tools::ApprovalId},
    services::tools::{Approver, ModuleLanguage, SearchResult},
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
pub(super) async fn decisions(call: Call<ListDecisions>) -> Answer<NetworkDecisions> {
    Ok(Json(NetworkDecisions::from(&*call.parts.network.decisions().newest(&call.who, page(call.query.limit)?))))
}

/// List the network policies.
///
/// Those in the server's settings, and those that operators made.
#[utoipa::path(
    get, path = "/v1/admin/network", tag = "admin", operation_id = "listNetworkPolicies",
    responses((status = 200, description = "The policies.", body = PolicyList)),
)]
pub(super) async fn policies(call: Call) -> Json<PolicyList> {
    Json(call.parts.admin.policies().into())
}

/// List the newest connections of all programs.
///
/// Those that were made and those that were refused, newest first, of every owner.
#[utoipa::path(
    get, path = "/v1/admin/network-decisions", tag = "admin", operation_id = "listNetworkDecisionsOfAll",
    params(ListDecisions),
    responses((status = 200, description = "The connections.", body = OwnedDecisions)),
)]
pub(super) async fn all_decisions(call: Call<ListDecisions>) -> Answer<OwnedDecisions> {
    Ok(Json(OwnedDecisions::from(&*call.parts.network.decisions().newest_of_all(page(call.query.limit)?))))
}

/// Make or change a network policy.
///
/// It applies from the next connection on, in running programs too. A policy of the server's settings cannot be changed
/// here.
#[utoipa::path(
    put, path = "/v1/admin/network/{name}", tag = "admin", operation_id = "putNetworkPolicy",
    request_body(content = PolicyBody),
    responses((status = 204, description = "It is in force.")),
)]
pub(super) async fn put_policy(call: Call, body: RequestBody) -> Reply<StatusCode> {
    let name: String = call.name(4, "name")?;
    let policy: PolicyBody = body.json().await?;
    no_content(call.parts.admin.put_policy(&call.who, &name, &policy.text()?).await)
}

/// Delete a network policy.
///
/// Programs make no new connections by it; open connections go on.
#[utoipa::path(
    delete, path = "/v1/admin/network/{name}", tag = "admin", operation_id = "deleteNetworkPolicy",
    responses((status = 204, description = "It is deleted.")),
)]
pub(super) async fn remove_policy(call: Call) -> Reply<StatusCode> {
    no_content(call.parts.admin.remove_policy(&call.who, &call.name::<String>(4, "name")?).await)
}

#[derive(Deserialize, JsonSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ModuleLanguageQuery {
    /// `python` (default) or `typescript`.
    #[param(inline)]
    language: Option<ModuleLanguage>,
}

#[derive(Deserialize, JsonSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct WhichApprovals {
    /// Whether to list only questions that wait for an answer.
    open: Option<bool>,
}

/// The caller, who may be an operator.
fn approver<Q>(call: &Call<Q>) -> Approver {
    let is_operator = call.token.as_ref().is_some_and(|token| token.check_scope(Scope::Admin).is_ok());
    Approver { who: call.who.clone(), is_operator, by: "api" }
}

fn question(call: &Call) -> Result<ApprovalId, Failure> {
    let id: String = call.name(3, "id")?;
    id.parse().map_err(|_| Failure::new(Code::NotFound, "There is no such question."))
}

/// List the tool servers.
///
/// The servers whose tools your programs may call. Each is asked for its tools, so this may take some seconds.
#[utoipa::path(
    get, path = "/v1/tools", tag = "tools", operation_id = "listTools",
    responses((status = 200, description = "The servers.", body = ToolServerStates)),
)]
pub(super) async fn servers(call: Call) -> Json<ToolServerStates> {
    Json(ToolServerStates { servers: call.parts.tools.servers(&call.who).await })
}

/// Search for tools.
///
/// By words in names and descriptions, best match first.
#[utoipa::path(
    get, path = "/v1/tools/search", tag = "tools", operation_id = "searchTools",
    params(SearchTools),
    responses((status = 200, description = "The tools.", body = SearchResult)),
)]
pub(super) async fn search(call: Call<SearchTools>) -> Answer<SearchResult> {
    Ok(Json(call.parts.tools.search(&call.who, &call.query.query, found_limit(call.query.limit)?).await?))
}

/// Get the module that a program imports for a tool.
///
/// It has the types of the tool's parameters and result.
#[utoipa::path(
    get, path = "/v1/tools/{server}/{tool}/source", tag = "tools", operation_id = "getToolSource",
    params(ModuleLanguageQuery),
    responses((status = 200, description = "The module.", body = ToolSource)),
)]
pub(super) async fn source(call: Call<ModuleLanguageQuery>) -> Answer<ToolSource> {
    let (server, tool): (String, String) = (call.name(3, "server")?, call.name(4, "tool")?);
    let language = call.query.language.unwrap_or(ModuleLanguage::Python);
    Ok(Json(call.parts.tools.source(&call.who, &server, &tool, language).await?.into()))
}

/// List questions about calls.
///
/// Your own; with the scope `admin` those of all owners.
#[utoipa::path(
    get, path = "/v1/approvals", tag = "tools", operation_id = "listApprovals",
    params(WhichApprovals),
    responses((status = 200, description = "The newest questions, and older answers that stand.", body = ApprovalList)),
)]
pub(super) async fn approvals(call: Call<WhichApprovals>) -> Answer<ApprovalList> {
    let approvals = call.parts.tools.approvals().list(&approver(&call), call.query.open.unwrap_or(false)).await?;
    Ok(Json(ApprovalList::from(&*approvals)))
}

/// Get a question about a call.
///
/// With its answer, where there is one.
#[utoipa::path(
    get, path = "/v1/approvals/{id}", tag = "tools", operation_id = "getApproval",
    responses((status = 200, description = "The question.", body = ApprovalResult)),
)]
pub(super) async fn approval(call: Call) -> Answer<ApprovalResult> {
    Ok(Json(ApprovalResult::from(&call.parts.tools.approvals().get(&approver(&call), question(&call)?).await?)))
}

/// Answer a question about a call.
///
/// The first answer counts, and the waiting program goes on.
#[utoipa::path(
    post, path = "/v1/approvals/{id}", tag = "tools", operation_id = "answerApproval",
    request_body(content = AnswerBody),
    responses((status = 200, description = "It is answered.", body = ApprovalResult)),
)]
pub(super) async fn answer(call: Call, body: RequestBody) -> Answer<ApprovalResult> {
    let id = question(&call)?;
    let AnswerBody { answer } = body.json().await?;
    Ok(Json(ApprovalResult::from(&call.parts.tools.approvals().answer(&approver(&call), id, answer).await?)))
}

/// Withdraw an answer or a question.
///
/// Calls that the answer allowed are asked about again.
#[utoipa::path(
    delete, path = "/v1/approvals/{id}", tag = "tools", operation_id = "deleteApproval",
    responses((status = 204, description = "It was withdrawn.")),
)]
pub(super) async fn withdraw(call: Call) -> Reply<StatusCode> {
    no_content(call.parts.tools.approvals().revoke(&approver(&call), question(&call)?).await)
}

/// List the tool servers of all owners.
///
/// Those in the server's settings, and those that operators made.
#[utoipa::path(
    get, path = "/v1/tool-servers", tag = "admin", operation_id = "listToolServers",
    responses((status = 200, description = "The servers.", body = ToolServerList)),
)]
pub(super) async fn all_servers(call: Call) -> Json<ToolServerList> {
    Json(ToolServerList::from(&**call.parts.tools.directory()))
}

/// Make or change a tool server.
///
/// Its rules apply from the next call on, in running programs too. A tool server of the settings cannot be changed
/// here.
#[utoipa::path(
    put, path = "/v1/tool-servers/{name}", tag = "admin", operation_id = "putToolServer",
    request_body(content = ToolServerBody),
    responses((status = 204, description = "It is in force.")),
)]
pub(super) async fn put_server(call: Call, body: RequestBody) -> Reply<StatusCode> {
    let name: String = call.name(3, "name")?;
    let ToolServerBody { server, secret } = body.json().await?;
    no_content(call.parts.admin.put_tool_server(&call.who, &name, &server, secret.as_deref()).await)
}

/// Delete a tool server.
///
/// Running calls of its tools end.
#[utoipa::path(
    delete, path = "/v1/tool-servers/{name}", tag = "admin", operation_id = "deleteToolServer",
    responses((status = 204, description = "It is deleted.")),
)]
pub(super) async fn remove_server(call: Call) -> Reply<StatusCode> {
    no_content(call.parts.admin.remove_tool_server(&call.who, &call.name::<String>(3, "name")?).await)
}
