//! The tool that formats a program and names its problems.

use super::{
    Caller, McpParts,
    caller::ToolResult,
    content::{said, section},
    shown::{OUTPUT_BYTES_MAX, fitting, left_out, shorten},
};
use crate::{
    api::schema::check::{CheckProgram, CheckReport, ProgramProblem},
    domain::error::Failure,
};

/// Room for the lines about problems, in bytes.
const PROBLEMS_BYTES_MAX: usize = 16 << 10;

impl McpParts {
    pub(super) async fn check_code(&self, caller: &Caller, arguments: CheckProgram) -> ToolResult {
        let CheckProgram { language, code } = arguments;
        let report = CheckReport::from(self.checker.check(&caller.principal, &language, &code.0).await?);
        // A part of a program is of no use. One that is formatted already is not repeated in a text.
        let is_shown = |formatted: &str| caller.view.structured || formatted.as_bytes() != &code.0[..];
        let is_long = |formatted: &str| fitting(formatted, OUTPUT_BYTES_MAX) < formatted.len();
        if report.code.as_deref().is_some_and(|formatted| is_shown(formatted) && is_long(formatted)) {
            return Err(Failure::argument(
                "code",
                "it is too long for one answer when it is formatted: send a part of it",
            ));
        }
        Ok(said(caller, text(caller, &report, &code.0), &report))
    }
}

/// The problems, then the program; for a client with `structuredContent` the program is only there.
fn text(caller: &Caller, report: &CheckReport, sent: &[u8]) -> String {
    let mut lines = String::new();
    for ProgramProblem { line, column, rule, message, severity, .. } in &report.problems {
        section(&mut lines, &format!("- {line}:{column} {rule} ({severity}): {message}"));
    }
    if lines.is_empty() {
        lines.push_str("No problems were found.");
    }
    let mut text = shorten(&lines, PROBLEMS_BYTES_MAX, left_out);
    match &report.code {
        None => section(&mut text, "[The program cannot be parsed, so it is not formatted.]"),
        Some(formatted) if formatted.as_bytes() == sent => section(&mut text, "[The program is formatted already.]"),
        Some(_) if caller.view.structured => section(&mut text, "[The formatted program: see code.]"),
        Some(formatted) => {
            section(&mut text, "[The formatted program:]");
            section(&mut text, formatted);
        }
    }
    text
}
