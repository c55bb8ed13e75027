//! What programs find: the languages that can be run now, the source of what is installed for them, and skills; and the
//! check of a program by the tools of its language.

use axum::{
    Json,
    http::{StatusCode, header},
    response::IntoResponse as _,
};

use super::Call;
use crate::{
    api::{
        http::{Answer, Reply, RequestBody, no_content},
        schema::{
            Binary, RunnerList,
            installed::{CheckProgram, CheckedProgram, Skill, SkillDetails, SkillList},
            session::ModuleSource,
        },
    },
    domain::{
        Code, ConversationId, Ended, Failure, Language,
        skills::{SKILL_BYTES_MAX, SkillName},
    },
    ports::runner::Runner,
    services::runs::RunRequest,
};

/// Prints the source of a module; ends with status 3 where there is none.
const PRINT_SOURCE: &str = "\
import importlib.util, sys
try:
    spec = importlib.util.find_spec(NAME)
    source = spec.loader.get_source(NAME)
except Exception:
    source = None
if source is None:
    sys.exit(3)
sys.stdout.reconfigure(encoding='utf-8', newline='')
sys.stdout.write(source)
";
const MODULE_NAME_CHARS_MAX: usize = 200;

/// List the languages that can be run now.
///
/// The list changes when the operator builds or removes an image.
#[utoipa::path(
    get, path = "/v1/runners", tag = "runners", operation_id = "listRunners",
    responses((status = 200, description = "The languages, ordered by name.", body = RunnerList)),
)]
pub(super) async fn list(call: Call) -> Json<RunnerList> {
    Json(RunnerList { skills: Some(call.parts.skills.is_on()), ..RunnerList::from(&call.parts.runs) })
}

/// Read the source of an installed module.
///
/// For Python. It is read in a fresh sandbox, in which nothing else runs.
#[utoipa::path(
    get, path = "/v1/runners/{language}/modules/{name}", tag = "runners", operation_id = "readModule",
    responses((status = 200, description = "Its source.", body = ModuleSource)),
)]
pub(super) async fn module(call: Call) -> Answer<ModuleSource> {
    let (language, name): (Language, String) = (call.name(3, "language")?, call.name(5, "name")?);
    let none = || Failure::new(Code::NotFound, "There is no module of that name whose source could be read.");
    let runners = call.parts.runs.runners();
    let runner = Runner::find(&runners, &language);
    if runner.is_none_or(|runner| runner.language != Language::default()) || !is_module_name(&name) {
        return Err(none().into());
    }
    let program = PRINT_SOURCE.replace("NAME", &format!("'{name}'"));
    let request =
        RunRequest { throw_away: true, ..RunRequest::new(call.key(ConversationId::fresh()), language, program.into()) };
    let report = call.finished(request).await?;
    match report.outcome.ended {
        Ended::Exited { code: 0 } => Ok(Json((name, &report.stdout).into())),
        Ended::Exited { code: 3 } => Err(none().into()),
        _ => Err(Failure::new(Code::RunnerFailed, report.outcome.sentence()).into()),
    }
}

fn is_module_name(name: &str) -> bool {
    let is_part = |part: &str| {
        part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && part.bytes().next().is_some_and(|first| !first.is_ascii_digit())
    };
    name.len() <= MODULE_NAME_CHARS_MAX && name.split('.').all(is_part)
}

/// Format and check a program.
///
/// The tools in the image of the language do this in a sandbox of their own; nothing of the program is executed. There
/// are tools for Python (ruff), JavaScript and TypeScript (biome), and Bash (shfmt). A program that cannot be parsed is
/// an answer too: its `code` is `null`, and problems with the rule `syntax` say where.
#[utoipa::path(
    post, path = "/v1/check", tag = "runs", operation_id = "checkProgram",
    request_body(content = CheckProgram),
    responses((status = 200, description = "It is checked.", body = CheckedProgram)),
)]
pub(super) async fn check(call: Call, body: RequestBody) -> Answer<CheckedProgram> {
    // Without capacity the body is not read.
    call.parts.checker.check_capacity(&call.who)?;
    let CheckProgram { language, code } = body.json().await?;
    Ok(Json(call.parts.checker.check(&call.who, &language, &code.0).await?.into()))
}

fn skill_name(call: &Call) -> Result<SkillName, Failure> {
    call.name(3, "name")
}

/// List the skills.
///
/// The public ones and your own; one of your own hides a public one of the same name.
#[utoipa::path(
    get, path = "/v1/skills", tag = "skills", operation_id = "listSkills",
    responses((status = 200, description = "The skills.", body = SkillList)),
)]
pub(super) async fn list_skills(call: Call) -> Answer<SkillList> {
    Ok(Json(SkillList::from(&*call.parts.skills.list(&call.who).await?)))
}

/// Get a skill and its files.
///
/// Each file has its size and path. In sandboxes the files are below `location`.
#[utoipa::path(
    get, path = "/v1/skills/{name}", tag = "skills", operation_id = "getSkill",
    responses((status = 200, description = "The skill.", body = SkillDetails)),
)]
pub(super) async fn get_skill(call: Call) -> Answer<SkillDetails> {
    let (skill, files) = call.parts.skills.files(&call.who, &skill_name(&call)?).await?;
    Ok(Json((&skill, &*files).into()))
}

/// Read a file of a skill.
///
/// `SKILL.md` has the instructions, which refer to the other files.
#[utoipa::path(
    get, path = "/v1/skills/{name}/files/{path}", tag = "skills", operation_id = "readSkillFile",
    responses(
        (status = 200, description = "The file.", content_type = "application/octet-stream", body = Binary),
    ),
)]
pub(super) async fn skill_file(call: Call) -> Reply {
    let content = call.parts.skills.file(&call.who, &skill_name(&call)?, &call.path()?, SKILL_BYTES_MAX).await?;
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
    request_body(
        content((Binary = "application/zip"), (Binary = "application/octet-stream")),
        description = "A zip of plain files.",
    ),
    responses(
        (status = 200, description = "It replaced the earlier one.", body = Skill),
        (status = 201, description = "It was created.", body = Skill),
    ),
)]
pub(super) async fn put_skill(call: Call, body: RequestBody) -> Reply<(StatusCode, Json<Skill>)> {
    let name = skill_name(&call)?;
    let bytes = body.read_as("zip", "application/zip").await?;
    let (skill, replaced) = call.parts.skills.upload(&call.who, &name, bytes).await?;
    let status = if replaced { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(Skill::from(&skill))))
}

/// Delete a skill of your own.
///
/// A public skill of the same name can be seen again.
#[utoipa::path(
    delete, path = "/v1/skills/{name}", tag = "skills", operation_id = "removeSkill",
    responses((status = 204, description = "It is deleted.")),
)]
pub(super) async fn remove_skill(call: Call) -> Reply<StatusCode> {
    no_content(call.parts.skills.remove(&call.who, &skill_name(&call)?).await)
}
