//! What a check of the server and its machine found.

use serde::Serialize;

/// How serious a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = LevelWord)]
pub enum Level {
    Ok,
    /// It works and could be better.
    Warn,
    /// Programs cannot run, or not safely.
    Fail,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = FindingResult)]
pub struct Finding {
    pub level: Level,
    /// What was checked, one word.
    pub check: &'static str,
    pub detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}
