//! A run: the body that begins one over HTTP, and a run as clients see it while it goes on and when it is over.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Ending, ErrorCode, File, StateWord, answers,
    arguments::{Program, Wait},
    moment, rfc3339,
};
use crate::{
    domain::{
        ConversationId, Ended, Environment, Failure, Figures, Language, Limits, Outcome,
        environment::check_args,
        outcome::signal_text,
        text::{ms, sha256},
    },
    ports::history::{HistoryLine, LineEnd},
    services::{
        history::failure,
        runs::{Report, RunPage, RunState, RunView},
    },
};

/// The least memory that a sandbox starts in, in bytes.
pub const MEMORY_BYTES_MIN: u64 = 16 << 20;

/// A program to run.
#[derive(Debug, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreateRun {
    /// The conversation whose files are /data; a fresh one if none is named.
    #[serde(rename = "conversationId")]
    #[schema(value_type = Option<String>, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$", min_length = 1, max_length = 128)]
    pub conversation: Option<ConversationId>,
    /// A language or an alias of one, such as python.
    #[schema(value_type = String, pattern = "^[A-Za-z0-9][A-Za-z0-9._+#-]*$", min_length = 1, max_length = 32)]
    pub language: Language,
    /// The whole program.
    #[schema(value_type = String, min_length = 1)]
    pub code: Program,
    /// Arguments of the program, for runners that take them.
    #[schema(max_items = 256)]
    pub args: Option<Vec<String>>,
    /// Environment variables of the program, with names that the operator allows; no answer shows their values.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    pub env: Option<Environment>,
    /// Names of the network policies that it may use, out of those of the token; default all, `[]` for none.
    #[schema(max_items = 64)]
    pub network: Option<Vec<String>>,
    /// Standard input, for runners that take it.
    pub stdin: Option<String>,
    /// Whether standard input stays open after `stdin`: more is sent with `sendInput`, which also ends it.
    pub stdin_open: Option<bool>,
    /// How many seconds to wait for the end; 0 answers at once. By default, the answer waits for the end.
    #[schema(value_type = Option<u64>, minimum = 0, maximum = 3600)]
    pub wait: Option<Wait>,
    /// Whether the run goes on when the client disconnects. By default, the server's setting decides, which is to
    /// cancel the run unless the operator changed it.
    pub detach: Option<bool>,
    /// Limits below the server's; higher values are lowered to the server's.
    pub limits: Option<RunLimits>,
}

/// Limits of a run.
#[derive(Debug, Default, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunLimits {
    /// Wall clock, in milliseconds.
    #[schema(minimum = 1)]
    pub wall_ms: Option<u64>,
    /// Memory, in bytes.
    #[schema(minimum = 16_777_216)]
    pub memory_bytes: Option<u64>,
    /// CPU time per second, in thousandths of a core.
    #[schema(value_type = Option<u32>, minimum = 10)]
    pub cpu_millis: Option<u64>,
    /// Processes and threads together.
    #[schema(value_type = Option<u32>, minimum = 4)]
    pub processes_max: Option<u64>,
    /// Output of both streams together, in bytes.
    #[schema(minimum = 1)]
    pub output_bytes_max: Option<u64>,
}

answers! {
    /// A run as it is now.
    #[derive(Default)]
    pub struct RunStatus(view: &RunView) {
        /// Its id.
        run_id: String = view.run.to_string(),
        /// The conversation whose files are /data.
        conversation_id: String = view.conversation.id.to_string(),
        /// The language's own name.
        language: String = view.language.to_string(),
        /// Whether it is a cell of a session.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        cell: bool = view.is_cell,
        /// Its state.
        #[schema(value_type = StateWord)]
        state: &'static str = view.state.word(),
        /// Its position among the waiting runs of its owner, counted from 1; only while it waits.
        position: Option<u32> = if let RunState::Queued { position } = view.state { position } else { None },
        /// When it was created (RFC 3339).
        created_at: String = rfc3339(view.created_unix_s),
        /// How long the program has run so far, or took, in milliseconds.
        wall_ms: u64 = ms(view.wall),
        /// Whether its program can be sent input now.
        stdin_open: bool = view.takes_input,
        /// The number of its newest event.
        newest_event: u64 = view.newest,
        /// How the program ended, once it has.
        outcome: Option<OutcomeResult> = report(view).map(|report| (&report.outcome).into()),
        /// The resources it used, once it has ended.
        figures: Option<FiguresResult> = report(view).map(|report| (&report.outcome.figures).into()),
        /// Why the server could not run it, when that is how it ended.
        error: Option<RunError> = view.result.as_ref().and_then(|result| result.as_ref().err()).map(RunError::from),
        /// Whether the run is no longer in memory: this is its outcome from the history, without output and files.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        from_history: bool = false,
        /// The program, at most its first 64 KiB, when the run is read by its id.
        source: Option<String> = None,
        /// Whether the program is longer than `source`.
        source_truncated: Option<bool> = None,
        /// The whole result, once it ended; not in lists.
        result: Option<Box<RunResult>> = None,
    }

    /// Why the server could not run a program.
    pub struct RunError(failure: &Failure) {
        /// A stable word for programs.
        #[schema(value_type = ErrorCode)]
        code: &'static str = failure.code.as_str(),
        /// One sentence that says what to do.
        message: String = failure.message.clone(),
    }

    /// A page of runs.
    pub struct RunList(page: &RunPage) {
        /// Newest first.
        runs: Vec<RunStatus> = page.runs.iter().map(Into::into).collect(),
        /// Give it as `after` for the next page; absent on the last.
        after: Option<String> = page.after.as_ref().map(ToString::to_string),
    }

    /// The result of a run.
    pub struct RunResult(report: &Report) {
        /// Identifies this run in logs.
        run_id: String = report.run.to_string(),
        /// The conversation whose files were /data.
        conversation_id: String = report.conversation.id.to_string(),
        /// The language's own name, also when the request used an alias.
        language: String = report.language.to_string(),
        /// How the program ended.
        outcome: OutcomeResult = (&report.outcome).into(),
        /// What the program printed to standard output. Bytes that are not UTF-8 are replaced by U+FFFD.
        stdout: String = report.stdout.text.clone(),
        /// What the program printed to standard error.
        stderr: String = report.stderr.text.clone(),
        /// Whether some of standard output was left out; a mark in the text says where and how much.
        stdout_truncated: bool = report.stdout.truncated,
        /// Whether some of standard error was left out; a mark in the text says where and how much.
        stderr_truncated: bool = report.stderr.truncated,
        /// The resources that the run used.
        figures: FiguresResult = (&report.outcome.figures).into(),
        /// The files in /data: those this run created or changed first, then the rest.
        files: Vec<File> = report.files.files.iter().map(File::from).collect(),
        /// Whether there are more files than are listed.
        files_truncated: bool = report.files.truncated,
    }

    /// How a program ended.
    #[derive(JsonSchema)]
    pub struct OutcomeResult(outcome: &Outcome) {
        /// One word for how it ended.
        #[schemars(extend("enum" = Ended::WORDS))]
        #[schema(value_type = Ending)]
        ended: &'static str = outcome.ended.word(),
        /// The exit status, when the program ended by itself.
        exit_code: Option<i32> = outcome.ended.status_or_signal().0,
        /// The name of the signal that ended the program, when one did.
        signal: Option<String> = outcome.ended.status_or_signal().1.map(signal_text),
        /// Whether a process was killed for lack of memory: the program itself when it ended `out_of_memory`, else only
        /// a child of it.
        oom_killed: Option<bool> = outcome.oom_killed.then_some(true),
        /// What happened and what to do about it, in one sentence.
        sentence: String = outcome.sentence(),
    }

    /// The resources that a run used.
    #[derive(JsonSchema)]
    pub struct FiguresResult(figures: &Figures) {
        /// Running time of the program, in milliseconds.
        wall_ms: u64 = ms(figures.wall),
        /// CPU time, in milliseconds, where it is known.
        cpu_ms: Option<u64> = figures.cpu.map(ms),
        /// Peak memory of its sandbox since the sandbox started, in bytes, where it is known. It includes what the
        /// interpreter has loaded and, in a session, earlier cells.
        memory_peak_bytes: Option<u64> = figures.memory_peak_bytes,
        /// Bytes printed to standard output, kept or not.
        stdout_bytes: u64 = figures.stdout_bytes,
        /// Bytes printed to standard error, kept or not.
        stderr_bytes: u64 = figures.stderr_bytes,
        /// Number of files it created or changed, listed or not.
        files_changed: u64 = figures.files,
    }
}

/// A run: its result, or its state so far. What a program printed comes first, because clients show a beginning.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunReport {
    /// What the program printed to standard output; a mark says where some is left out. Bytes that are not UTF-8 are
    /// replaced by U+FFFD.
    pub stdout: String,
    /// What the program printed to standard error, in the same way.
    pub stderr: String,
    /// How the program ended, once it has.
    pub outcome: Option<OutcomeResult>,
    /// Advice about the result.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<String>,
    /// The state of the run. Only a finished run has outcome, figures and files.
    #[schemars(extend("enum" = ["queued", "running", "finished"]))]
    pub state: &'static str,
    /// Identifies this run.
    pub run_id: String,
    /// The conversation whose files are /data.
    pub conversation_id: String,
    /// The language's own name.
    pub language: String,
    /// The number of its newest event: give it as afterEvent to see only what is printed later.
    pub newest_event: u64,
    /// The files in /data that this run created or changed.
    pub files: Vec<File>,
    /// The resources that the run used, once it has ended.
    pub figures: Option<FiguresResult>,
}

impl CreateRun {
    /// What the types of the members do not check: the arguments, and the limits, of which `server` is the upper bound.
    ///
    /// # Errors
    /// [`crate::domain::error::Code::InvalidArgument`], naming the argument.
    pub fn checked(&self, server: &Limits) -> Result<Option<Limits>, Failure> {
        check_args(self.args.as_deref().unwrap_or_default())?;
        self.limits.as_ref().map(|limits| limits.within(server)).transpose()
    }
}

impl RunLimits {
    pub(super) fn within(&self, server: &Limits) -> Result<Limits, Failure> {
        let one = |name: &str, value: Option<u64>, min: u64, most: u64| match value {
            Some(value) if value < min => {
                Err(Failure::argument(&format!("limits.{name}"), format!("it must be at least {min}")))
            }
            value => Ok(value.map_or(u64::MAX, |value| value.min(most))),
        };
        let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        Ok(Limits {
            wall_ms: one("wallMs", self.wall_ms, 1, server.wall_ms)?,
            memory_bytes: one("memoryBytes", self.memory_bytes, MEMORY_BYTES_MIN, server.memory_bytes)?,
            cpu_millis: small(one("cpuMillis", self.cpu_millis, 10, server.cpu_millis.into())?),
            processes_max: small(one("processesMax", self.processes_max, 4, server.processes_max.into())?),
            output_bytes_max: one("outputBytesMax", self.output_bytes_max, 1, server.output_bytes_max)?,
            ..Limits::UNBOUNDED
        })
    }
}

/// What came of a program that the server could run.
pub(super) fn report(view: &RunView) -> Option<&Report> {
    view.result.as_ref()?.as_deref().ok()
}

impl RunStatus {
    /// A run with its whole result.
    pub fn whole(view: &RunView) -> Self {
        Self { result: report(view).map(|report| Box::new(report.into())), ..view.into() }
    }

    /// The same with its program.
    pub fn with_source(view: &RunView) -> Self {
        let (source, truncated) = (view.source.text.to_string(), view.source.truncated);
        Self { source: Some(source), source_truncated: Some(truncated), ..Self::whole(view) }
    }

    /// A run of the history. Where it has no end, another server runs it.
    pub fn recorded(line: &HistoryLine) -> Self {
        let end = line.end.as_ref();
        let error = end.and_then(failure);
        let is_told = end.filter(|_| error.is_none());
        Self {
            run_id: line.run.to_string(),
            conversation_id: line.conversation.id.to_string(),
            language: line.language.to_string(),
            cell: line.is_cell,
            state: if end.is_some() { RunState::Finished.word() } else { RunState::Running.word() },
            created_at: moment(line.run.unix_ms()),
            wall_ms: end.map_or(0, |end| ms(end.figures.wall)),
            outcome: is_told.map(OutcomeResult::from),
            figures: is_told.map(|end| (&end.figures).into()),
            error: error.as_ref().map(RunError::from),
            from_history: true,
            source: line.source.clone(),
            source_truncated: line.source.as_ref().map(|source| sha256(source.as_bytes()) != line.program_sha256),
            ..Self::default()
        }
    }
}

impl From<&LineEnd> for OutcomeResult {
    fn from(end: &LineEnd) -> Self {
        Self {
            ended: end.word.as_str(),
            exit_code: end.exit_code,
            signal: end.signal.map(signal_text),
            oom_killed: end.oom_killed.then_some(true),
            sentence: end.sentence.clone(),
        }
    }
}

impl RunReport {
    /// A run as it is, with some of what it printed.
    pub fn of(view: &RunView, stdout: String, stderr: String) -> Self {
        let files = report(view).map(|report| report.files.made().map(File::from).collect());
        Self { stdout, stderr, files: files.unwrap_or_default(), ..RunStatus::from(view).into() }
    }
}

impl From<RunStatus> for RunReport {
    fn from(status: RunStatus) -> Self {
        let RunStatus { outcome, state, run_id, conversation_id, language, newest_event, figures, .. } = status;
        Self { outcome, state, run_id, conversation_id, language, newest_event, figures, ..Self::default() }
    }
}

impl From<&HistoryLine> for RunReport {
    /// A run that is no longer in memory.
    fn from(line: &HistoryLine) -> Self {
        let id = &line.conversation.id;
        let hint = if line.end.is_some() {
            format!("The output is no longer kept; files are still in /data of the conversationId {id}")
        } else {
            "Another server runs it: ask again later how it ended".to_owned()
        };
        Self { hints: vec![hint], ..RunStatus::recorded(line).into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_run_without_an_end_is_said_to_go_on() {
        let mut line = HistoryLine::begun("c".parse().expect("a key"));
        let report = RunReport::from(&line);
        assert_eq!((report.state, report.outcome.is_none()), ("running", true));
        assert!(report.hints[0].starts_with("Another server runs it"), "{:?}", report.hints);
        line.end = Some(LineEnd::lost(0, ""));
        let report = RunReport::from(&line);
        assert!(report.hints[0].starts_with("The output is no longer kept"), "{:?}", report.hints);
    }
}
