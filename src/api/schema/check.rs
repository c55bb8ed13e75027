//! Programs that are formatted and checked, as clients send and see them.

use schemars::JsonSchema;
use serde::Deserialize;
use utoipa::ToSchema;

use super::{answers, arguments::Program};
use crate::{domain::Language, services::check};

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

answers! {
    /// A program that was formatted and checked.
    pub struct CheckedProgram(checked: check::Checked) {
        /// The formatted program; `null` where it cannot be parsed.
        #[serialize_always]
        code: Option<String> = checked.code,
        /// The first 100 problems. Positions are in the formatted program, or in the one that was sent where `code` is
        /// `null`.
        problems: Vec<ProgramProblem> = checked.problems.into_iter().map(Into::into).collect(),
    }

    /// The same for the MCP tool, whose results have no `null`.
    #[derive(JsonSchema)]
    pub struct CheckReport(checked: check::Checked) {
        /// The problems. Positions are in the formatted program, or in the one that was sent where `code` is absent.
        problems: Vec<ProgramProblem> = checked.problems.into_iter().map(Into::into).collect(),
        /// The formatted program; absent where it cannot be parsed.
        code: Option<String> = checked.code,
    }

    /// A problem at one position of a program.
    #[derive(JsonSchema)]
    pub struct ProgramProblem(problem: check::Problem) {
        /// The line, counted from 1.
        line: u32 = problem.line,
        /// The column in characters, counted from 1.
        column: u32 = problem.column,
        end_line: u32 = problem.end_line,
        /// The first column after the problem.
        end_column: u32 = problem.end_column,
        /// The tool's name of the rule, or `syntax`.
        #[schema(example = "F401")]
        rule: String = problem.rule,
        message: String = problem.message,
        /// `error`, `warning` or `info`.
        #[schema(pattern = "^(error|warning|info)$")]
        severity: &'static str = problem.severity.word(),
    }
}
