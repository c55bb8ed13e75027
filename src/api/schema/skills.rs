//! Skills, as clients name and see them.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::answers;
use crate::{domain::SafePath, services::skills};

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

answers! {
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
}
