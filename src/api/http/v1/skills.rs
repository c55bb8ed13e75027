//! Skills: list, read, upload, delete.

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse as _,
};

use super::call::{AtPath, Call, OfSkill};
use crate::{
    api::{
        http::{Answer, ApiParts, Reply, body::RequestBody, no_content},
        schema::{
            Binary,
            skills::{Skill, SkillDetails, SkillList},
        },
    },
    domain::{
        error::Failure,
        skills::{SKILL_BYTES_MAX, SkillName},
    },
    services::skills::Skills,
};

fn name(call: &Call) -> Result<SkillName, Failure> {
    call.name(3, "name")
}

/// List the skills.
///
/// The public ones and your own; one of your own hides a public one of the same name.
#[utoipa::path(
    get, path = "/v1/skills", tag = "skills", operation_id = "listSkills",
    responses((status = 200, description = "The skills.", body = SkillList)),
)]
pub(super) async fn list(State(skills): State<Skills>, call: Call) -> Answer<SkillList> {
    let skills = skills.list(&call.who).await?;
    Ok(Json(SkillList { skills: skills.iter().map(Skill::from).collect() }))
}

/// Get a skill and its files.
///
/// Each file has its size and path. In sandboxes the files are below `location`.
#[utoipa::path(
    get, path = "/v1/skills/{name}", tag = "skills", operation_id = "getSkill",
    params(OfSkill),
    responses((status = 200, description = "The skill.", body = SkillDetails)),
)]
pub(super) async fn get(State(skills): State<Skills>, call: Call) -> Answer<SkillDetails> {
    let (skill, files) = skills.files(&call.who, &name(&call)?).await?;
    Ok(Json(SkillDetails { skill: Skill::from(&skill), files: files.iter().map(Into::into).collect() }))
}

/// Read a file of a skill.
///
/// `SKILL.md` has the instructions, which refer to the other files.
#[utoipa::path(
    get, path = "/v1/skills/{name}/files/{path}", tag = "skills", operation_id = "readSkillFile",
    params(OfSkill, AtPath),
    responses(
        (status = 200, description = "The file.", content_type = "application/octet-stream", body = Binary),
    ),
)]
pub(super) async fn file(State(skills): State<Skills>, call: Call) -> Reply {
    let content = skills.file(&call.who, &name(&call)?, &call.path()?, SKILL_BYTES_MAX).await?;
    // Never a page of this origin, whatever was uploaded.
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream"),
        (header::CONTENT_DISPOSITION, "attachment"),
        (header::CACHE_CONTROL, "private, no-store"),
    ];
    Ok((headers, content.bytes).into_response())
}

/// Upload a skill of your own.
///
/// The archive holds `SKILL.md` and the skill's other files, at its top or in a folder with the skill's name. It is
/// checked as a whole, and then replaces your skill of that name as a whole. Running sandboxes see it at once if they
/// were started when you had skills, or for one of your conversations.
#[utoipa::path(
    put, path = "/v1/skills/{name}", tag = "skills", operation_id = "putSkill",
    params(OfSkill),
    request_body(
        content((Binary = "application/zip"), (Binary = "application/octet-stream")),
        description = "A zip of plain files.",
    ),
    responses(
        (status = 200, description = "It replaced the earlier one.", body = Skill),
        (status = 201, description = "It was created.", body = Skill),
    ),
)]
pub(super) async fn put(parts: ApiParts, call: Call, body: RequestBody) -> Reply<(StatusCode, Json<Skill>)> {
    let name = name(&call)?;
    let bytes = body.read_as("zip", "application/zip").await?;
    let (skill, replaced) = parts.skills.upload(&call.who, &name, bytes).await?;
    let status = if replaced { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(Skill::from(&skill))))
}

/// Delete a skill of your own.
///
/// A public skill of the same name can be seen again.
#[utoipa::path(
    delete, path = "/v1/skills/{name}", tag = "skills", operation_id = "removeSkill",
    params(OfSkill),
    responses((status = 204, description = "It is deleted.")),
)]
pub(super) async fn remove(State(skills): State<Skills>, call: Call) -> Reply<StatusCode> {
    no_content(skills.remove(&call.who, &name(&call)?).await)
}
