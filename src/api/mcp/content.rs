//! Answers as content blocks: text that a model reads, pictures, links. A client that wants it gets the same as
//! `structuredContent`; by default none, because clients then hide the text and the pictures from the model.
//!
//! An answer is bounded ([`super::shown`]): output by its own limit, files by the listing's, pictures by what is left.
//! A program's output is in the text as it was printed, but of a line of standard error that is drawn again and again,
//! as a progress bar, only the last drawing. It may imitate our own lines; the reliable outcome is in
//! `structuredContent`, which no program can write to and which has every drawing. Offsets count all that was printed,
//! so drawings are left out of a text after it was shortened, and not from an offset on.

use std::time::Duration;

use rmcp::model::{CallToolResult, ContentBlock, Resource};
use serde::Serialize;

use super::{
    Caller,
    describe::ToolName,
    shown::{ANSWER_BYTES_MAX, OUTPUT_BYTES_MAX, fitting, last_drawings, left_out, shorten, shorten_to, size},
};
use crate::{
    api::schema::{
        ErrorResult, File, FileListing, FileResult, RunnerList, json_len,
        run::RunReport,
        session::{SessionList, SessionStatus, SessionsChanged},
    },
    domain::{ConversationId, Ended, Failure, RunId, text::json_bytes},
    services::runs::{CapturedOutput, Report, RunState, RunView},
};

/// Room for what surrounds the result of a call, and for the last hint, in bytes.
pub(super) const REST_BYTES: usize = 4 << 10;

/// A run as a call shows it.
pub(super) struct RunAnswer<'a> {
    pub caller: &'a Caller,
    pub view: &'a RunView,
    pub output: (&'a CapturedOutput, &'a CapturedOutput),
    /// Only the output from this byte on.
    pub offset: Option<u64>,
}

impl RunAnswer<'_> {
    /// The answer without pictures, and how many bytes they may take in it.
    pub(super) fn without_pictures(&self) -> (RunReport, usize) {
        let (stdout, stderr) = self.shown();
        let mut report = RunReport::of(self.view, stdout, stderr);
        if self.offset.is_some() {
            report.files.clear();
        }
        report.hints = self.hints();
        let used = json_len(&self.with_pictures(&report, Vec::new()));
        (report, ANSWER_BYTES_MAX.saturating_sub(used + REST_BYTES))
    }

    /// Output, verdict, files; then pictures, then links.
    pub(super) fn with_pictures(&self, report: &RunReport, pictures: Vec<ContentBlock>) -> CallToolResult {
        let nothing = if self.offset.is_some() { "[nothing more was printed]" } else { "[nothing was printed]" };
        let mut text = printed(&report.stdout, &last_drawings(&report.stderr));
        if text.is_empty() {
            section(&mut text, nothing);
        }
        verdict(&mut text, report);
        if !report.files.is_empty() {
            section(&mut text, "[Files in /data that this run created or changed:]");
            for file in &report.files {
                section(&mut text, &listed(file, file.change));
            }
        }
        hints(&mut text, report);
        let mut blocks = vec![ContentBlock::text(text)];
        blocks.extend(pictures);
        blocks.extend(report.files.iter().map(link));
        answer(self.caller, blocks, report, failed(report))
    }

    /// A failure of the run, behind what was printed before it.
    pub(super) fn failed(&self, failure: &Failure) -> CallToolResult {
        let (stdout, stderr) = self.shown();
        failure_after(self.caller, printed(&stdout, &last_drawings(&stderr)), failure)
    }

    /// What is shown of both streams. A mark in each says how to get what is left out.
    fn shown(&self) -> (String, String) {
        let (stdout, stderr) = (self.output.0.text.as_str(), self.output.1.text.as_str());
        let whole = printed(stdout, stderr);
        let mark = output_mark(self.caller, self.view.run, self.view.state == RunState::Finished);
        if let Some(offset) = self.offset {
            let start = whole.floor_char_boundary(usize::try_from(offset).unwrap_or(usize::MAX).min(whole.len()));
            let end = start + fitting(&whole[start..], OUTPUT_BYTES_MAX);
            let more = if end < whole.len() { mark(end, whole.len() - end) } else { String::new() };
            return ([&whole[start..end], &more].concat(), String::new());
        }
        let err = stderr.len().min(OUTPUT_BYTES_MAX / 3);
        let out = stdout.len().min(OUTPUT_BYTES_MAX - err);
        let before = whole.len() - stderr.len();
        (
            shorten(stdout, OUTPUT_BYTES_MAX - err, &mark),
            shorten(stderr, OUTPUT_BYTES_MAX - out, |at, left| mark(before + at, left)),
        )
    }

    fn hints(&self) -> Vec<String> {
        let mut hints = Vec::new();
        match &self.view.result {
            Some(Ok(report)) => {
                let (all, made) = (report.files.files.len() as u64, report.files.changed);
                let listed = report.files.made().count() as u64;
                if made > listed {
                    hints.push(more_files(self.caller, &self.view.conversation.id, made - listed));
                }
                let others = all - listed;
                if others > 0 {
                    let more = if report.files.truncated { "at least " } else { "" };
                    hints.push(format!("Other files in /data: {more}{others}"));
                }
            }
            Some(Err(_)) => {}
            None => hints.push(self.come_back()),
        }
        let id = &self.view.conversation.id;
        // No client named it. A task is begun without a text, so every answer names it.
        if id.is_made_here() {
            let found = if self.view.is_cell { "variables and files" } else { "files" };
            hints.push(format!("The conversationId is {id}: give it in the next call to find these {found} again"));
        }
        hints
    }

    fn come_back(&self) -> String {
        let RunView { state, run, newest, wall, .. } = self.view;
        let state = match state {
            RunState::Queued { position: Some(position) } => {
                format!("The run waits for its turn, as number {position}.")
            }
            RunState::Queued { position: None } => "The run's sandbox is being started.".to_owned(),
            RunState::Running | RunState::Finished => format!("The program still runs, for {} now.", took(*wall)),
        };
        let (again, stop) = if self.caller.has(ToolName::GetRun) {
            let [get, cancel] = [ToolName::GetRun, ToolName::CancelRun].map(|tool| self.caller.tool(tool));
            let again = format!("{get} {{\"runId\": \"{run}\", \"afterEvent\": {newest}}}");
            (again, format!("{cancel} {{\"runId\": \"{run}\"}}"))
        } else {
            (format!("GET /v1/runs/{run}?wait=30"), format!("POST /v1/runs/{run}/cancel"))
        };
        format!("{state} It goes on: call {again} to see what comes, or {stop} to stop it.")
    }
}

/// The mark of output that is left out: where in the whole it begins, and how much it is. It names the call that shows
/// it, which is a route for a client whose list has no such tool.
pub(super) fn output_mark(caller: &Caller, run: RunId, is_over: bool) -> impl Fn(usize, usize) -> String {
    let tool = caller.has(ToolName::GetRun).then(|| caller.tool(ToolName::GetRun));
    move |at, left| {
        let call = match tool {
            Some(tool) if is_over => format!("{tool} {{\"runId\": \"{run}\", \"outputOffset\": {at}}}"),
            Some(tool) => tool.to_owned(),
            None => format!("GET /v1/runs/{run}"),
        };
        let when = if is_over { "" } else { ", when the program has ended," };
        format!("\n[… {left} bytes are left out here: {call}{when} shows them …]\n")
    }
}

/// The hint about files that an answer does not list.
fn more_files(caller: &Caller, conversation: &ConversationId, files: u64) -> String {
    let list = if caller.has(ToolName::ListFiles) {
        format!("{} {{\"conversationId\": \"{conversation}\"}}", caller.tool(ToolName::ListFiles))
    } else {
        format!("GET /v1/conversations/{conversation}/files")
    };
    format!("{files} more files were created or changed: {list} lists them")
}

/// A run of the history.
pub(super) fn recorded(caller: &Caller, report: &RunReport) -> CallToolResult {
    let mut text = String::new();
    verdict(&mut text, report);
    hints(&mut text, report);
    answer(caller, vec![ContentBlock::text(text)], report, failed(report))
}

fn verdict(text: &mut String, report: &RunReport) {
    if let (Some(outcome), Some(figures)) = (&report.outcome, &report.figures) {
        let wall = took(Duration::from_millis(figures.wall_ms));
        section(text, &format!("[{} It took {wall}.]", outcome.sentence));
    }
}

fn hints(text: &mut String, report: &RunReport) {
    for hint in &report.hints {
        section(text, &format!("[{hint}]"));
    }
}

fn failed(report: &RunReport) -> bool {
    report.outcome.as_ref().is_some_and(|outcome| outcome.exit_code != Some(0))
}

/// A run as text alone, for tools of others: what it printed, what stopped it, its files.
pub(super) fn plain_run(caller: &Caller, report: &Report, chars_max: usize) -> CallToolResult {
    let outcome = &report.outcome;
    let mark = output_mark(caller, report.run, true);
    let all = printed(&report.stdout.text, &report.stderr.text);
    // Where standard error begins: in the whole, then in what is shown of it.
    let mut begin = all.len() - report.stderr.text.len();
    let shown = shorten_to(&all, (OUTPUT_BYTES_MAX, chars_max), |at, left| {
        let mark = mark(at, left);
        begin = if begin < at + left { begin.min(at) } else { begin - left + mark.len() };
        mark
    });
    let mut text = [&shown[..begin], &last_drawings(&shown[begin..])].concat();
    if !outcome.ended.is_success() && (text.is_empty() || !matches!(outcome.ended, Ended::Exited { .. })) {
        section(&mut text, &format!("[{}]", outcome.sentence()));
    }
    let (mut left, mut more) = (OUTPUT_BYTES_MAX, report.files.changed);
    for file in report.files.made() {
        let line = listed(&File::from(file), file.change.word());
        let Some(rest) = left.checked_sub(json_bytes(&line)) else { break };
        (left, more) = (rest, more.saturating_sub(1));
        section(&mut text, &line);
    }
    if more > 0 {
        section(&mut text, &format!("[{}]", more_files(caller, &report.conversation.id, more)));
    }
    plain(text, !outcome.ended.is_success())
}

/// A text.
pub(super) fn plain(text: String, is_error: bool) -> CallToolResult {
    let blocks = vec![ContentBlock::text(text)];
    if is_error { CallToolResult::error(blocks) } else { CallToolResult::success(blocks) }
}

/// Some texts, each by itself; one empty where there is none.
pub(super) fn texts(texts: Vec<String>) -> CallToolResult {
    let blocks: Vec<_> = texts.into_iter().map(ContentBlock::text).collect();
    CallToolResult::success(if blocks.is_empty() { vec![ContentBlock::text("")] } else { blocks })
}

/// A text, and the same for programs.
pub(super) fn text_result(caller: &Caller, text: impl Into<String>, structured: &impl Serialize) -> CallToolResult {
    answer(caller, vec![ContentBlock::text(text)], structured, false)
}

/// A session on each line.
pub(super) fn session_lines(list: &SessionList) -> String {
    let mut text = String::new();
    for SessionStatus { session_id, language, state, cells, idle_ms, .. } in &list.sessions {
        let unused = took(Duration::from_millis(*idle_ms));
        section(&mut text, &format!("- {language} ({session_id}): {state}, {cells} cells, unused for {unused}"));
    }
    if text.is_empty() {
        text.push_str("No session is open: the next cell opens one.");
    }
    text
}

/// What was done to sessions.
pub(super) fn sessions_changed(caller: &Caller, sessions: usize, done: &str) -> CallToolResult {
    let text = if sessions == 0 { "No session is open there." } else { done };
    text_result(caller, text, &SessionsChanged { sessions })
}

fn printed(stdout: &str, stderr: &str) -> String {
    let mut text = stdout.to_owned();
    if !stderr.is_empty() {
        section(&mut text, "[standard error]");
        section(&mut text, stderr);
    }
    text
}

fn took(wall: Duration) -> String {
    format!("{}.{:02} s", wall.as_secs(), wall.subsec_millis() / 10)
}

/// The languages.
pub(super) fn runners(caller: &Caller, list: &RunnerList) -> CallToolResult {
    let mut text = String::new();
    for runner in &list.runners {
        let version = runner.version.as_ref().map(|version| format!(" {version}"));
        let aliases = (!runner.aliases.is_empty()).then(|| format!(" (also: {})", runner.aliases.join(", ")));
        let about = runner.description.as_ref().map(|about| format!(": {about}"));
        let line = [Some(runner.language.clone()), version, aliases, about].into_iter().flatten().collect::<String>();
        section(&mut text, &line);
    }
    if text.is_empty() {
        text.push_str("No language is installed: the operator builds runner images with ./build.sh.");
    }
    let text = shorten(&text, OUTPUT_BYTES_MAX, left_out);
    text_result(caller, text, list)
}

/// A page of the files that these arguments name, which are members of JSON.
pub(super) fn listing(caller: &Caller, arguments: &str, list: &FileListing) -> CallToolResult {
    let mut text = String::new();
    for file in &list.files {
        section(&mut text, &listed(file, &file.media_type));
    }
    if text.is_empty() {
        section(&mut text, "There are no files here.");
    }
    for skipped in &list.skipped {
        section(&mut text, &format!("- {} is not a plain file ({}) and cannot be read", skipped.path, skipped.kind));
    }
    if let Some(cursor) = &list.after {
        let list = caller.tool(ToolName::ListFiles);
        section(&mut text, &format!("[More files follow: {list} {{{arguments}, \"cursor\": \"{cursor}\"}}]"));
    }
    text_result(caller, text, list)
}

/// A file's content from an offset, once: in the text, as a picture or as bytes; for a client with `structuredContent`,
/// there.
pub(super) fn file(
    caller: &Caller,
    (file, offset): (FileResult, u64),
    picture: Option<ContentBlock>,
) -> CallToolResult {
    let about = format!("{} ({}, {})", file.path, file.media_type, size(file.size));
    let more = file
        .next_offset
        .filter(|_| picture.is_none())
        .map(|next| format!("[The file continues at offset {next}; it has {} bytes.]", file.size));
    let (text, is_picture) = (file.encoding == "utf-8", picture.is_some());
    let shown = match &file.content {
        _ if is_picture => format!("{about} is this picture."),
        _ if file.size == 0 => format!("{about} is empty."),
        content if content.is_empty() => format!("{about} has nothing at offset {offset}: it ends at {}.", file.size),
        _ if caller.view.structured => format!("{about}: see content."),
        content if text => content.clone(),
        _ => format!("These bytes of {about} are not text: they follow in base64. A program can read them in /data."),
    };
    let bytes = (!text && !is_picture && !caller.view.structured).then(|| file.content.clone());
    let blocks = [Some(shown), more, bytes].into_iter().flatten().map(ContentBlock::text).chain(picture).collect();
    answer(caller, blocks, &if is_picture { file.without_content() } else { file }, false)
}

/// A picture, for a client that takes none.
pub(super) fn picture_link(caller: &Caller, file: FileResult, url: &str) -> CallToolResult {
    let text = format!("{} ({}, {}) is a picture: {url}", file.path, file.media_type, size(file.size));
    text_result(caller, text, &file.without_content())
}

/// A file that was written.
pub(super) fn written(caller: &Caller, done: &str, file: &File) -> CallToolResult {
    let text = format!("{done} /data/{} ({}): {}", file.path, size(file.size), file.url);
    answer(caller, vec![ContentBlock::text(text), link(file)], file, false)
}

/// A server error or invalid arguments: the sentence for the model, the code for programs.
pub(super) fn failure(caller: &Caller, failure: &Failure) -> CallToolResult {
    failure_after(caller, String::new(), failure)
}

fn failure_after(caller: &Caller, mut text: String, failure: &Failure) -> CallToolResult {
    let message = caller.sentence(failure);
    section(&mut text, &message);
    let structured = ErrorResult::from((failure.code, message, caller.request));
    answer(caller, vec![ContentBlock::text(text)], &structured, true)
}

pub(super) fn answer(
    caller: &Caller,
    mut blocks: Vec<ContentBlock>,
    structured: &impl Serialize,
    is_error: bool,
) -> CallToolResult {
    blocks.retain(|block| caller.view.links || !matches!(block, ContentBlock::ResourceLink(_)));
    let mut result = if is_error { CallToolResult::error(blocks) } else { CallToolResult::success(blocks) };
    // Cannot fail: these structs hold only strings, numbers and lists.
    result.structured_content = caller.view.structured.then(|| serde_json::to_value(structured).ok()).flatten();
    result
}

pub(super) fn link(file: &File) -> ContentBlock {
    ContentBlock::resource_link(
        Resource::new(&file.url, &file.path).with_mime_type(&file.media_type).with_size(file.size),
    )
}

/// A file on a line of its own. Nothing follows the link, and no character in it has a meaning in Markdown or a shell.
pub(super) fn listed(file: &File, about: &str) -> String {
    let encoded = file.path_encoded.as_ref().map(|path| format!(", pathEncoded {path}")).unwrap_or_default();
    format!("- {} ({}, {about}{encoded}): {}", file.path, size(file.size), file.url)
}

/// A part of a text, on lines of its own.
pub(super) fn section(text: &mut String, part: &str) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(part);
}
