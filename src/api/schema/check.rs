//! Programs that are formatted and checked, as clients send and see them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::arguments::Program;
use crate::{domain::id::Language, services::check};

/// A program to format and check.
#[derive(Debug, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CheckProgram {
    /// `python`, `javascript`, `typescript` or `bash`, or an alias of one.
    #[schema(value_type = String, pattern = "^[A-Za-z0-9][A-Za-z0-9._+#-]*$", min_length = 1, max_length = 32,
        example = "python")]
    pub language: Language,
    /// The whole program.
    #[schema(value_type = String, min_length = 1, example = "x = 1;y = 2")]
    pub code: Program,
}

/// A program that was formatted and checked.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct CheckedProgram {
    /// The formatted program; `null` where it cannot be parsed.
    pub code: Option<String>,
    /// The first 100 problems. Positions are in the formatted program, or in the one that was sent where `code` is
    /// `null`.
    pub problems: Vec<ProgramProblem>,
}

/// The same for the MCP tool, whose results have no `null`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct CheckReport {
    /// The problems. Positions are in the formatted program, or in the one that was sent where `code` is absent.
    pub problems: Vec<ProgramProblem>,
    /// The formatted program; absent where it cannot be parsed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

/// A problem at one position of a program.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProgramProblem {
    /// The line, counted from 1.
    pub line: u32,
    /// The column in characters, counted from 1.
    pub column: u32,
    pub end_line: u32,
    /// The first column after the problem.
    pub end_column: u32,
    /// The tool's name of the rule, or `syntax`.
    #[schema(example = "F401")]
    pub rule: String,
    pub message: String,
    /// `error`, `warning` or `info`.
    #[schema(pattern = "^(error|warning|info)$")]
    pub severity: &'static str,
}

impl From<check::Checked> for CheckedProgram {
    fn from(check::Checked { code, problems }: check::Checked) -> Self {
        Self { code, problems: problems.into_iter().map(Into::into).collect() }
    }
}

impl From<check::Checked> for CheckReport {
    fn from(check::Checked { code, problems }: check::Checked) -> Self {
        Self { problems: problems.into_iter().map(Into::into).collect(), code }
    }
}

impl From<check::Problem> for ProgramProblem {
    fn from(problem: check::Problem) -> Self {
        let check::Problem { line, column, end_line, end_column, rule, message, severity } = problem;
        Self { line, column, end_line, end_column, rule, message, severity: severity.word() }
    }
}
