//! Skills, as clients name and see them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::{domain::path::SafePath, services::skills};

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

/// The skills that the caller's programs can read.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct SkillList {
    /// Public skills, then the caller's own, each sorted by name. A skill of the caller hides a public one of the same
    /// name.
    pub skills: Vec<Skill>,
}

/// A skill.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Skill {
    #[schema(example = "data-profile")]
    pub name: String,
    pub description: String,
    /// `public` for a skill of the operator, `user` for the caller's own.
    #[schema(pattern = "^(public|user)$")]
    pub source: &'static str,
    /// Its folder in a sandbox.
    #[schema(example = "/skills/public/data-profile")]
    pub location: String,
    /// The front matter of `SKILL.md`, as JSON.
    #[schema(value_type = Object)]
    pub front_matter: Map<String, Value>,
}

/// A skill with its files.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct SkillDetails {
    #[serde(flatten)]
    pub skill: Skill,
    pub files: Vec<SkillEntry>,
}

/// A file of a skill.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SkillEntry {
    /// The path below the skill's folder, for display.
    pub path: String,
    /// The percent-encoded path, for use in a URL.
    pub path_encoded: String,
    /// The size in bytes.
    pub size: u64,
}

impl From<&skills::Skill> for Skill {
    fn from(skill: &skills::Skill) -> Self {
        Self {
            name: skill.front.name.to_string(),
            description: skill.front.description.clone(),
            source: skill.source.label(),
            location: skill.location(),
            front_matter: skill.front.all.clone(),
        }
    }
}

impl From<&(SafePath, u64)> for SkillEntry {
    fn from((path, size): &(SafePath, u64)) -> Self {
        Self { path: path.display(), path_encoded: path.to_encoded(), size: *size }
    }
}
