//! The history and the usage of all owners, for operators.

use axum::{Json, extract::State};
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use utoipa::IntoParams;

use super::call::{Call, page};
use crate::{
    api::{
        http::Answer,
        schema::history::{Day, HistoryList, Moment, UsageList, UsageResult},
    },
    domain::{
        id::{ConversationId, Language, RunId},
        owner::Principal,
    },
    ports::history::{EndWord, LineFilter, UsageFilter},
    services::history::History,
};

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
pub(super) async fn list(State(history): State<Arc<History>>, call: Call<ListHistory>) -> Answer<HistoryList> {
    let limit = page(call.query.limit)?;
    let filter = LineFilter {
        owner: call.query.owner,
        conversation: call.query.conversation,
        language: call.query.language,
        ended: call.query.ended,
        from: call.query.from.map(|from| from.0),
        to: call.query.to.map(|to| to.0),
        after: call.query.cursor,
    };
    Ok(Json(HistoryList::from(&history.page(&filter, limit).await?)))
}

/// Sum up what was used.
///
/// By day, owner and language, since the database was created. Needs the scope `admin`.
#[utoipa::path(
    get, path = "/v1/usage", tag = "history", operation_id = "listUsage",
    params(ListUsage),
    responses((status = 200, description = "The usage, at most 10000 sums.", body = UsageList)),
)]
pub(super) async fn usage(State(history): State<Arc<History>>, call: Call<ListUsage>) -> Answer<UsageList> {
    let (from, to) = (call.query.from.map(|from| from.0), call.query.to.map(|to| to.0));
    let (lines, truncated) = history.usage(&UsageFilter { owner: call.query.owner, from, to }, USAGE_MAX).await?;
    Ok(Json(UsageList { usage: lines.iter().map(UsageResult::from).collect(), truncated }))
}
