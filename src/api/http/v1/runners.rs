//! The languages that can be run now, the source of what is installed for them, and the check of a program by their
//! tools.

use axum::{Json, extract::State};

use super::call::Call;
use crate::{
    api::{
        http::{Answer, body::RequestBody},
        schema::{
            RunnerList,
            check::{CheckProgram, CheckedProgram},
            session::ModuleSource,
        },
    },
    domain::{
        error::{Code, Failure},
        id::{ConversationId, Language},
        outcome::Ended,
        owner::ConversationKey,
    },
    services::{
        check::Checker,
        runs::{RunRequest, Runs},
        skills::Skills,
    },
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
pub(super) async fn list(State(runs): State<Runs>, State(skills): State<Skills>, _: Call) -> Json<RunnerList> {
    Json(RunnerList { skills: Some(skills.is_on()), ..RunnerList::from(&runs) })
}

/// Read the source of an installed module.
///
/// For Python. It is read in a fresh sandbox, in which nothing else runs.
#[utoipa::path(
    get, path = "/v1/runners/{language}/modules/{name}", tag = "runners", operation_id = "readModule",
    params(
        ("language" = String, Path, description = "The language.", pattern = "^[A-Za-z0-9][A-Za-z0-9._+#-]*$"),
        ("name" = String, Path, description = "The module, such as `json.decoder`.", pattern = "^[A-Za-z0-9_.]+$"),
    ),
    responses((status = 200, description = "Its source.", body = ModuleSource)),
)]
pub(super) async fn module(State(runs): State<Runs>, call: Call) -> Answer<ModuleSource> {
    let (language, name): (Language, String) = (call.name(3, "language")?, call.name(5, "name")?);
    let none = || Failure::new(Code::NotFound, "There is no module of that name whose source could be read.");
    let runners = runs.runners();
    let runner = runners.iter().find(|runner| runner.language == language || runner.aliases.contains(&language));
    if runner.is_none_or(|runner| runner.language != Language::default()) || !is_module_name(&name) {
        return Err(none().into());
    }
    let program = PRINT_SOURCE.replace("NAME", &format!("'{name}'"));
    let request = RunRequest {
        throw_away: true,
        detach: Some(false),
        within: call.trace,
        ..RunRequest::new(ConversationKey::new(call.who, ConversationId::fresh()), language, program.into())
    };
    let report = runs.begin(request)?.finished().await?;
    match report.outcome.ended {
        Ended::Exited { code: 0 } => {
            let truncated = report.stdout.truncated;
            Ok(Json(ModuleSource { name, source: report.stdout.text.clone(), truncated }))
        }
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
pub(super) async fn check(State(checker): State<Checker>, call: Call, body: RequestBody) -> Answer<CheckedProgram> {
    // Without capacity the body is not read.
    checker.check_capacity(&call.who)?;
    let CheckProgram { language, code } = body.json().await?;
    Ok(Json(checker.check(&call.who, &language, &code.0).await?.into()))
}
