//! Skills, as clients name and see them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::services::skills::{self, SkillFile};

/// Which skill a tool reads. The name is parsed later: what is no name is a skill that does not exist.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetSkillInfo {
    #[schemars(description = "A name that list_skills lists.")]
    pub skill_name: String,
}

/// Which file of a skill a tool reads.
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
#[serde(rename_all = "camelCase")]
pub struct SkillList {
    /// Public ones, then the caller's own, each by name. An own one hides a public one of the same name.
    pub skills: Vec<Skill>,
}

/// A skill.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Skill {
    #[schema(example = "data-profile")]
    pub name: String,
    pub description: String,
    /// `public` for the operator's, `user` for the caller's own.
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
#[serde(rename_all = "camelCase")]
pub struct SkillDetails {
    #[serde(flatten)]
    pub skill: Skill,
    pub files: Vec<SkillEntry>,
}

/// A file of a skill.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SkillEntry {
    /// Below the skill's folder; for display.
    pub path: String,
    /// The path for an address: percent-encoded.
    pub path_encoded: String,
    /// In bytes.
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

impl From<&SkillFile> for SkillEntry {
    fn from(SkillFile { path, size }: &SkillFile) -> Self {
        Self { path: path.display(), path_encoded: path.to_encoded(), size: *size }
    }
}
