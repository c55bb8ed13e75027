//! What programs find, as clients ask for it and see it: packages of conversations and skills. Also programs that are
//! formatted and checked by the tools of their language.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{answers, arguments::Program};
use crate::{
    domain::{ConversationId, Language, SafePath},
    services::{check, packages, skills},
};

/// Packages that a tool installs.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InstallPackages {
    pub conversation_id: ConversationId,
    /// The language that will use them.
    pub language: Language,
    /// Names, with or without versions: requests, pandas>=2; for npm lodash@^4.
    #[schemars(length(min = 1, max = 100))]
    pub packages: Vec<String>,
}

/// Packages to install into a conversation.
#[derive(Debug, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreatePackages {
    /// The language that will use them, or an alias of one; default python.
    #[schema(value_type = Option<String>, pattern = "^[A-Za-z0-9][A-Za-z0-9._+#-]*$", min_length = 1, max_length = 32)]
    pub language: Option<Language>,
    /// Names, with or without versions: `requests`, `pandas>=2`; for npm `lodash@^4`.
    #[schema(min_items = 1, max_items = 100, example = json!(["humanize"]))]
    pub packages: Vec<String>,
}

/// The skill that a tool reads. The name is parsed later: an invalid name is an unknown skill.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetSkillInfo {
    #[schemars(description = "A name that list_skills lists.")]
    pub skill_name: String,
}

/// The file of a skill that a tool reads.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetSkillFile {
    #[schemars(description = "A name that list_skills lists.")]
    pub skill_name: String,
    /// The path in the skill, such as scripts/run.py.
    pub filename: String,
}

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
    /// The packages that a conversation has now.
    #[derive(JsonSchema)]
    pub struct InstalledPackages(installed: &packages::Installed) {
        /// The program that installed them: uv or npm.
        tool: &'static str = installed.tool.word(),
        /// All packages that were requested in the conversation and their dependencies, with versions.
        packages: Vec<String> = installed.packages.clone(),
        /// Whether an earlier installation of the same packages for this owner was reused.
        reused: bool = installed.reused,
        /// Disk space of the packages, in bytes.
        bytes: u64 = installed.usage.bytes,
    }

    /// The skills that the caller's programs can read.
    pub struct SkillList(found: &[skills::Skill]) {
        /// Public skills, then the caller's own, each sorted by name. A skill of the caller hides a public one of the
        /// same name.
        skills: Vec<Skill> = found.iter().map(Into::into).collect(),
    }

    /// A skill.
    pub struct Skill(skill: &skills::Skill) {
        #[schema(example = "data-profile")]
        name: String = skill.front.name.to_string(),
        description: String = skill.front.description.clone(),
        /// `public` for a skill of the operator, `user` for the caller's own.
        #[schema(pattern = "^(public|user)$")]
        source: &'static str = skill.source.label(),
        /// Its folder in a sandbox.
        #[schema(example = "/skills/public/data-profile")]
        location: String = skill.location(),
        /// The front matter of `SKILL.md`, as JSON.
        #[schema(value_type = Object)]
        front_matter: Map<String, Value> = skill.front.all.clone(),
    }

    /// A skill with its files.
    pub struct SkillDetails((found, entries): (&skills::Skill, &[(SafePath, u64)])) {
        #[serde(flatten)]
        skill: Skill = found.into(),
        files: Vec<SkillEntry> = entries.iter().map(Into::into).collect(),
    }

    /// A file of a skill.
    pub struct SkillEntry((path, bytes): &(SafePath, u64)) {
        /// The path below the skill's folder, for display.
        path: String = path.display(),
        /// The percent-encoded path, for use in a URL.
        path_encoded: String = path.to_encoded(),
        /// The size in bytes.
        size: u64 = *bytes,
    }

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
