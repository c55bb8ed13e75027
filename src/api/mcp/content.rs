//! Answers as content blocks. The first block is text that a model reads; `structuredContent` holds the same for
//! programs.
//!
//! The JSON is not repeated as a text block, though the specification suggests it for older clients: the text is
//! complete, and models would pay for the same output twice.
//!
//! A program's output is in the text unchanged and may imitate our own lines; the reliable outcome is in
//! `structuredContent`, which no program can write to.

use std::{fmt::Write as _, time::Duration};

use rmcp::model::{CallToolResult, ContentBlock, Resource};
use serde::Serialize;

use super::{
    Caller,
    describe::{ToolName, size},
};
use crate::{
    api::schema::{Deleted, ErrorResult, File, FileListing, FileResult, RunnerList, report::RunReport},
    domain::error::Failure,
    services::runs::{RunState, RunView},
};

/// How many names one text holds; `structuredContent` has them all.
const NAMES_MAX: usize = 50;

/// A run: output, verdict, names of files; then pictures, then links.
pub(super) fn run(result: &RunReport, pictures: Vec<ContentBlock>) -> CallToolResult {
    let made: Vec<_> = result.files.iter().filter(|file| file.change != "unchanged").collect();
    let mut blocks = vec![ContentBlock::text(run_text(result, &made))];
    blocks.extend(pictures);
    blocks.extend(made.into_iter().map(link));
    let succeeded = result.outcome.as_ref().is_some_and(|outcome| outcome.exit_code == Some(0));
    answer(blocks, result, !succeeded)
}

/// A run that goes on: its new output, and how to return to it.
pub(super) fn going_on(result: &RunReport, view: &RunView, caller: &Caller) -> CallToolResult {
    let mut text = printed(result, "[nothing was printed since]");
    let state = match view.state {
        RunState::Queued { position: Some(position) } => format!("The run waits for its turn, as number {position}."),
        RunState::Queued { position: None } => "The run's sandbox is being started.".to_owned(),
        RunState::Running | RunState::Finished => format!("The program still runs, for {} now.", took(view.wall)),
    };
    let come_back = format!(
        "[{state} It goes on: call {} {{\"runId\": \"{}\", \"afterEvent\": {}, \"waitSeconds\": 45}} to see \
         what comes, or {} {{\"runId\": \"{}\"}} to stop it.]",
        caller.tool(ToolName::GetRun),
        result.run_id,
        result.newest_event,
        caller.tool(ToolName::CancelRun),
        result.run_id,
    );
    section(&mut text, &come_back);
    answer(vec![ContentBlock::text(text)], result, false)
}

fn printed(result: &RunReport, nothing: &str) -> String {
    let mut text = String::new();
    section(&mut text, &result.stdout);
    if !result.stderr.is_empty() {
        section(&mut text, "[standard error]");
        section(&mut text, &result.stderr);
    }
    if text.is_empty() {
        section(&mut text, nothing);
    }
    text
}

fn took(wall: Duration) -> String {
    format!("{}.{:02} s", wall.as_secs(), wall.subsec_millis() / 10)
}

fn run_text(result: &RunReport, made: &[&File]) -> String {
    let mut text = printed(result, "[nothing was printed]");
    if let (Some(outcome), Some(figures)) = (&result.outcome, &result.figures) {
        let wall = took(Duration::from_millis(figures.wall_ms));
        section(&mut text, &format!("[{} It took {wall}.]", outcome.sentence));
    }
    if !made.is_empty() {
        section(&mut text, "[Files in /data that this run created or changed:]");
        names(&mut text, made, |file| format!("{}, {}", file.change, size(file.size)));
    }
    let others = result.files.len() - made.len();
    if others > 0 {
        let more = if result.files_truncated { "at least " } else { "" };
        section(&mut text, &format!("[Other files in /data: {more}{others}]"));
    }
    text
}

/// The languages.
pub(super) fn runners(list: &RunnerList) -> CallToolResult {
    let mut text = String::new();
    for runner in &list.runners {
        let mut line = runner.language.clone();
        // Writing to a String cannot fail.
        if let Some(version) = &runner.version {
            let _ = write!(line, " {version}");
        }
        if !runner.aliases.is_empty() {
            let _ = write!(line, " (also: {})", runner.aliases.join(", "));
        }
        if let Some(description) = &runner.description {
            let _ = write!(line, ": {description}");
        }
        if runner.standing_by > 0 {
            let _ = write!(line, " [{} stand by]", runner.standing_by);
        }
        section(&mut text, &line);
    }
    if text.is_empty() {
        text.push_str("No language is installed: the operator builds runner images with ./build.sh.");
    }
    answer(vec![ContentBlock::text(text)], list, false)
}

/// A conversation's files.
pub(super) fn listing(list: &FileListing) -> CallToolResult {
    let mut text = String::new();
    let files: Vec<_> = list.files.iter().collect();
    names(&mut text, &files, |file| format!("{}, {}", size(file.size), file.media_type));
    if text.is_empty() {
        section(&mut text, "There are no files in /data.");
    }
    if list.truncated {
        section(&mut text, "There are more files than are listed: look closer with a program.");
    }
    for skipped in list.skipped.iter().take(NAMES_MAX) {
        section(&mut text, &format!("- {} is not a plain file ({}) and cannot be read", skipped.path, skipped.kind));
    }
    answer(vec![ContentBlock::text(text)], list, false)
}

/// A file's content.
pub(super) fn file(file: &FileResult, picture: Option<ContentBlock>) -> CallToolResult {
    let mut blocks = vec![ContentBlock::text(match (file.encoding, &picture) {
        (_, Some(_)) => format!("{}: a picture of {}", file.path, size(file.size)),
        ("utf-8", None) if file.content.is_empty() => {
            format!("{}: nothing from there on, {}", file.path, size(file.size))
        }
        ("utf-8", None) => file.content.clone(),
        _ => format!(
            "{} is not text ({}, {}): its bytes are in structuredContent as base64; a program can read them in /data.",
            file.path,
            file.media_type,
            size(file.size)
        ),
    })];
    blocks.extend(picture);
    if let Some(next) = file.next_offset {
        let note = format!("[There is more: the file has {} bytes. Go on with offset {next}.]", file.size);
        blocks.push(ContentBlock::text(note));
    }
    answer(blocks, file, false)
}

/// A file that was written.
pub(super) fn written(file: &File) -> CallToolResult {
    let text = format!("Wrote /data/{} ({}).", file.path, size(file.size));
    answer(vec![ContentBlock::text(text), link(file)], file, false)
}

/// A deleted file.
pub(super) fn deleted(path: &str, deleted: &Deleted) -> CallToolResult {
    answer(vec![ContentBlock::text(format!("Deleted /data/{path}."))], deleted, false)
}

/// A server error or invalid arguments: the sentence for the model, the code for programs.
pub(super) fn failure(failure: &Failure, caller: &Caller) -> CallToolResult {
    let message = failure.sentence(|operation| caller.tool(operation.into()));
    let structured = ErrorResult::new(failure.code, message.clone(), caller.request);
    answer(vec![ContentBlock::text(message)], &structured, true)
}

fn answer(blocks: Vec<ContentBlock>, structured: &impl Serialize, is_error: bool) -> CallToolResult {
    let mut result = if is_error { CallToolResult::error(blocks) } else { CallToolResult::success(blocks) };
    // Cannot fail: these structs hold only strings, numbers and lists.
    result.structured_content = serde_json::to_value(structured).ok();
    result
}

fn link(file: &File) -> ContentBlock {
    ContentBlock::resource_link(
        Resource::new(&file.url, &file.path).with_mime_type(&file.media_type).with_size(file.size),
    )
}

/// A part of a text, on lines of its own.
fn section(text: &mut String, part: &str) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(part);
}

fn names(text: &mut String, files: &[&File], about: impl Fn(&File) -> String) {
    for file in files.iter().take(NAMES_MAX) {
        section(text, &format!("- {} ({})", file.path, about(file)));
    }
    if let Some(more) = files.len().checked_sub(NAMES_MAX).filter(|more| *more > 0) {
        section(text, &format!("- and {more} more, named in structuredContent"));
    }
}
