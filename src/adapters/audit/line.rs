//! One run as one line of JSON. Pure. The length of a line is bounded: ids, languages and the names of files have
//! limits, and the number of named files has one.

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::{
    domain::{
        file::FileEntry,
        limits::Limits,
        outcome::{Ended, Outcome},
        text::{hex, ms, rfc3339},
    },
    ports::observer::{RunFacts, Stages},
};

const FILES_MAX: usize = 64;
const PATH_CHARS_MAX: usize = 256;

/// The fields in the order in which they are written. Operators parse their names: add fields, do not rename them.
#[derive(Debug, Serialize)]
struct Line<'a> {
    begun: String,
    ended: String,
    run: String,
    principal: &'a str,
    conversation: &'a str,
    language: &'a str,
    image: &'a str,
    program_sha256: String,
    program_bytes: usize,
    args: usize,
    stdin_bytes: u64,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<&'static str>,
    limits: LimitsOf,
    figures: Figures,
    files: Vec<File>,
    files_more: bool,
}

#[derive(Debug, Serialize)]
struct LimitsOf {
    cpu_millis: u32,
    memory_bytes: u64,
    wall_ms: u64,
    processes_max: u32,
    open_files_max: u32,
    file_bytes_max: u64,
    output_bytes_max: u64,
    tmp_bytes: u64,
}

#[derive(Debug, Default, Serialize)]
struct Figures {
    queue_ms: Option<u64>,
    start_ms: Option<u64>,
    stood_by: bool,
    wall_ms: Option<u64>,
    total_ms: u64,
    cpu_ms: Option<u64>,
    memory_peak_bytes: Option<u64>,
    stdout_bytes: u64,
    stderr_bytes: u64,
    oom_killed: bool,
}

#[derive(Debug, Serialize)]
struct File {
    path: String,
    size: u64,
    change: &'static str,
}

/// The line with its line feed.
pub(super) fn of(run: &RunFacts<'_>) -> String {
    let line = Line {
        begun: rfc3339(run.begun_unix_s),
        ended: rfc3339(run.ended_unix_s),
        run: run.run.to_string(),
        principal: run.principal,
        conversation: run.conversation.id.as_str(),
        language: run.language.as_str(),
        image: run.image,
        program_sha256: hex(&Sha256::digest(run.program)),
        program_bytes: run.program.len(),
        args: run.args,
        stdin_bytes: run.stdin_bytes,
        outcome: run.end.map_or("failed", |outcome| outcome.ended.word()),
        exit_code: ended(run).and_then(|ended| if let Ended::Exited { code } = ended { Some(code) } else { None }),
        signal: ended(run).and_then(|ended| if let Ended::Signaled { signal } = ended { Some(signal) } else { None }),
        failure: run.end.err().map(|failure| failure.code.as_str()),
        limits: limits(run.limits),
        figures: figures(&run.stages, run.end.ok()),
        files: run.files.iter().copied().take(FILES_MAX).map(file).collect(),
        files_more: run.files_truncated || run.files.len() > FILES_MAX,
    };
    // The struct holds only numbers and strings, so this cannot fail.
    serde_json::to_string(&line).unwrap_or_default() + "\n"
}

fn ended(run: &RunFacts<'_>) -> Option<Ended> {
    run.end.ok().map(|outcome| outcome.ended)
}

fn limits(limits: &Limits) -> LimitsOf {
    LimitsOf {
        cpu_millis: limits.cpu_millis,
        memory_bytes: limits.memory_bytes,
        wall_ms: limits.wall_ms,
        processes_max: limits.processes_max,
        open_files_max: limits.open_files_max,
        file_bytes_max: limits.file_bytes_max,
        output_bytes_max: limits.output_bytes_max,
        tmp_bytes: limits.tmp_bytes,
    }
}

fn figures(stages: &Stages, outcome: Option<&Outcome>) -> Figures {
    let times = Figures {
        queue_ms: stages.queue.map(ms),
        start_ms: stages.start.map(ms),
        stood_by: stages.stood_by,
        total_ms: ms(stages.total),
        ..Figures::default()
    };
    let Some(outcome) = outcome else { return times };
    let known = &outcome.figures;
    Figures {
        wall_ms: Some(ms(known.wall)),
        cpu_ms: known.cpu.map(ms),
        memory_peak_bytes: known.memory_peak_bytes,
        stdout_bytes: known.stdout_bytes,
        stderr_bytes: known.stderr_bytes,
        oom_killed: outcome.oom_killed,
        ..times
    }
}

fn file(file: &FileEntry) -> File {
    File {
        path: file.path.display().chars().take(PATH_CHARS_MAX).collect(),
        size: file.size,
        change: file.change.word(),
    }
}
