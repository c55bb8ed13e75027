//! Facts as lines, and lines as failures. Pure. The length of a line is bounded: so are its parts.

use crate::{
    domain::{Code, Failure, Figures, InstanceId, Outcome},
    ports::{
        history::{EndWord, HistoryLine, LineEnd},
        observer::{BeginFacts, RunFacts},
    },
};

/// Names of files in a line, and the longest of them.
const FILES_MAX: usize = 64;
const FILE_CHARS_MAX: usize = 256;
const SENTENCE_CHARS_MAX: usize = 1000;

/// The sentence about a run whose server was lost.
pub(super) const LOST: &str = "The server ended while the program waited or ran, so how it ended is not known; it was \
                               not run again: look at the files, then run it again.";
/// The sentence about a run whose own end was not stored.
pub(super) const UNRECORDED: &str = "The database did not take how the program ended, so that is not known; it was \
                                     not run again: look at the files, then run it again.";

pub(super) fn of_begin(run: &BeginFacts<'_>, instance: InstanceId, source_bytes_max: usize) -> HistoryLine {
    HistoryLine {
        run: run.run,
        conversation: run.conversation.clone(),
        token: run.conversation.owner.token(),
        is_cell: run.is_cell,
        language: run.language.clone(),
        image: run.image.to_owned(),
        program_sha256: run.program.sha256.to_owned(),
        source: (source_bytes_max > 0).then(|| source(run.program.bytes, source_bytes_max)),
        instance,
        end: None,
    }
}

pub(super) fn of_end(run: &RunFacts<'_>, instance: InstanceId, source_bytes_max: usize, unix_ms: i64) -> HistoryLine {
    let end = LineEnd { unix_ms, files: files(run), ..run.end.map_or_else(|failure| failed(failure, run), ended) };
    HistoryLine { end: Some(end), ..of_begin(&run.begin, instance, source_bytes_max) }
}

/// Why the server failed the run, if it did.
pub fn failure(end: &LineEnd) -> Option<Failure> {
    end.failure.map(|code| Failure::new(code, end.sentence.clone()))
}

/// What a line takes in memory, about.
pub(super) fn bytes(line: &HistoryLine) -> usize {
    /// Ids, digests and numbers.
    const LINE_BYTES: usize = 768;
    let end =
        line.end.iter().map(|end| end.sentence.len() + end.files.iter().map(|name| name.len() + 24).sum::<usize>());
    LINE_BYTES + line.image.len() + line.source.as_ref().map_or(0, String::len) + end.sum::<usize>()
}

fn ended(outcome: &Outcome) -> LineEnd {
    let (exit_code, signal) = outcome.ended.status_or_signal();
    let (oom_killed, figures) = (outcome.oom_killed, outcome.figures);
    let cpu_max = figures.cpu.is_none().then(|| figures.cpu_or_most(outcome.limits.cpu_millis));
    let sentence = outcome.sentence();
    LineEnd { exit_code, signal, oom_killed, sentence, figures, cpu_max, ..LineEnd::of(outcome.ended.into()) }
}

fn failed(failure: &Failure, run: &RunFacts<'_>) -> LineEnd {
    let sentence = text(failure.message.chars().take(SENTENCE_CHARS_MAX));
    let cpu_max = run.lost.filter(|used| used.cpu.is_none()).map(|used| used.cpu_or_most(run.limits.cpu_millis));
    let figures = run.lost.unwrap_or_default();
    LineEnd { failure: Some(failure.code), sentence, figures, cpu_max, ..LineEnd::of(EndWord::FAILED) }
}

fn files(run: &RunFacts<'_>) -> Vec<String> {
    let names = run.files.iter().take(FILES_MAX);
    names.map(|file| text(file.path.display().chars().take(FILE_CHARS_MAX))).collect()
}

fn source(program: &[u8], bytes_max: usize) -> String {
    let begin = String::from_utf8_lossy(&program[..program.len().min(bytes_max)]);
    let mut begin = text(begin.chars());
    // Replacing zeros and broken bytes makes it longer.
    begin.truncate(begin.floor_char_boundary(bytes_max));
    begin
}

/// Without the zero character, which a text in `PostgreSQL` cannot hold.
fn text(chars: impl Iterator<Item = char>) -> String {
    chars.map(|c| if c == '\0' { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

impl LineEnd {
    /// The end of a run that no server knows.
    pub(crate) fn lost(unix_ms: i64, sentence: &str) -> Self {
        let (failure, sentence) = (Some(Code::ServerLost), sentence.to_owned());
        Self { unix_ms, failure, sentence, ..Self::of(EndWord::SERVER_LOST) }
    }

    fn of(word: EndWord) -> Self {
        Self {
            unix_ms: 0,
            word,
            exit_code: None,
            signal: None,
            oom_killed: false,
            failure: None,
            sentence: String::new(),
            figures: Figures::default(),
            cpu_max: None,
            files: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_is_never_longer_than_its_limit() {
        for (program, kept) in [
            ("print 1", "print 1"),
            ("print 1000", "print 10"),
            ("\0\0\0\0", "\u{fffd}\u{fffd}"),
            ("aaaaaaaä", "aaaaaaa"),
        ] {
            assert_eq!(source(program.as_bytes(), 8), kept, "{program:?}");
        }
        assert_eq!(source(&[0xff; 9], 8), "\u{fffd}\u{fffd}");
    }
}
