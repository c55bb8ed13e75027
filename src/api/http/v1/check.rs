//! Programs, formatted and checked.

use axum::{Json, extract::State};

use super::call::Call;
use crate::{
    api::{
        http::{Answer, body::RequestBody},
        schema::check::{CheckProgram, CheckedProgram},
    },
    services::check::Checker,
};

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
