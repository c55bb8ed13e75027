//! The history and the usage, as operators see them.

use std::str::FromStr;

use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{EndedWord, ErrorCode, answers, moment, parse::text, run::FiguresResult};
use crate::{
    domain::Code,
    ports::history::{EndWord, HistoryLine, UsageLine},
    services::history::HistoryPage,
};

const DAY_S: i64 = 24 * 3600;

answers! {
    /// A page of the history.
    pub struct HistoryList(page: &HistoryPage) {
        /// Newest first.
        runs: Vec<HistoryRun> = page.lines.iter().map(HistoryRun::from).collect(),
        /// Give it as `cursor` for the next page; absent on the last.
        cursor: Option<String> = page.after.as_ref().map(ToString::to_string),
    }

    /// A run or a cell in the history.
    pub struct HistoryRun(line: &HistoryLine) {
        /// Its id.
        run_id: String = line.run.to_string(),
        /// The owner.
        owner: String = line.conversation.owner.name().to_owned(),
        /// The owner's conversation.
        conversation_id: String = line.conversation.id.to_string(),
        /// The token that began it; absent for `MCP_API_TOKEN` and a user's own process.
        token_id: Option<String> = line.token.map(|token| token.to_string()),
        /// Whether it is a cell of a session.
        cell: bool = line.is_cell,
        /// The language's own name.
        language: String = line.language.to_string(),
        /// The digest of the container image.
        image: String = line.image.clone(),
        /// SHA-256 of the program, in hexadecimal digits.
        program_sha256: String = line.program_sha256.clone(),
        /// The beginning of the program, where `SANDBOX_HISTORY__SOURCE` is on.
        source: Option<String> = line.source.clone(),
        /// The server that ran it.
        instance_id: String = line.instance.to_string(),
        /// When it was created (RFC 3339).
        begun_at: String = moment(line.run.unix_ms()),
        /// When it ended (RFC 3339); absent while it waits or runs.
        ended_at: Option<String> = line.end.as_ref().map(|end| moment(end.unix_ms)),
        /// From its creation to its end, waiting included, in milliseconds; absent while it waits or runs.
        took_ms: Option<i64> = line.end.as_ref().map(|end| end.unix_ms.saturating_sub(line.run.unix_ms()).max(0)),
        /// How it ended; absent while it waits or runs.
        #[schema(value_type = EndedWord)]
        ended: Option<&'static str> = line.end.as_ref().map(|end| end.word.as_str()),
        /// The exit status, when the program ended by itself.
        exit_code: Option<i32> = line.end.as_ref().and_then(|end| end.exit_code),
        /// Why the server could not run it, or lost it.
        #[schema(value_type = ErrorCode)]
        error: Option<&'static str> = line.end.as_ref().and_then(|end| end.failure).map(Code::as_str),
        /// What happened and what to do about it, in one sentence.
        sentence: Option<String> = line.end.as_ref().map(|end| end.sentence.clone()),
        /// The resources it used, once it has ended.
        figures: Option<FiguresResult> =
            line.end.as_ref().filter(|end| end.word != EndWord::SERVER_LOST).map(|end| (&end.figures).into()),
        /// Names of files that it created or changed, at most 64.
        files: Vec<String> = line.end.as_ref().map(|end| end.files.clone()).unwrap_or_default(),
    }

    /// Usage by day, owner and language.
    pub struct UsageList((lines, is_cut): (&[UsageLine], bool)) {
        /// Newest day first, then by owner and language.
        usage: Vec<UsageResult> = lines.iter().map(Into::into).collect(),
        /// Whether the list is incomplete: ask for fewer days, or for one owner.
        truncated: bool = is_cut,
    }

    /// The usage of one owner in one language on one day.
    pub struct UsageResult(line: &UsageLine) {
        /// The owner.
        owner: String = line.owner.name().to_owned(),
        /// The day in UTC, as 2026-01-31, on which the runs were created.
        day: String = day(line.day),
        /// The language's own name.
        language: String = line.language.to_string(),
        /// Runs and cells that ended, except those whose server was lost.
        runs: i64 = line.runs,
        /// How many of these were cells.
        cells: i64 = line.cells,
        /// How many of these the server could not run.
        failed: i64 = line.failed,
        /// Running time of the programs, in milliseconds.
        wall_ms: i64 = line.wall_ms,
        /// CPU time, in milliseconds, as far as it is known.
        cpu_ms: i64 = line.cpu_ms,
        /// Bytes that programs printed, kept or not.
        output_bytes: i64 = line.output_bytes,
    }
}

/// A moment, as RFC 3339 writes it, in unix milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct Moment(pub i64);

impl FromStr for Moment {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // A query that was written by hand has the plus of an offset as it is, which means a space there.
        let moment = OffsetDateTime::parse(&text.replace(' ', "+"), &Rfc3339);
        let moment = moment.map_err(|_| "it must be a moment such as 2026-01-31T12:00:00Z")?;
        Ok(Self(i64::try_from(moment.unix_timestamp_nanos() / 1_000_000).unwrap_or_default()))
    }
}

/// A day, as 2026-01-31, in days since 1970-01-01.
#[derive(Debug, Clone, Copy)]
pub struct Day(pub i64);

impl FromStr for Day {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // The rest of a moment makes a day a moment, so one parser is enough.
        let moment = OffsetDateTime::parse(&format!("{text}T00:00:00Z"), &Rfc3339);
        let moment = moment.map_err(|_| "it must be a day such as 2026-01-31")?;
        Ok(Self(moment.unix_timestamp() / DAY_S))
    }
}

text!(Moment, Day);

fn day(days: i64) -> String {
    let begin = OffsetDateTime::from_unix_timestamp(days.saturating_mul(DAY_S));
    begin.map(|begin| begin.date().to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_moments_are_parsed_as_they_are_written() {
        assert_eq!("2026-11-22".parse::<Day>().map(|day| day.0), Ok(20_779));
        assert_eq!(day(20_779), "2026-11-22");
        for text in ["1970-01-01T01:00:00.5+01:00", "1970-01-01T01:00:00.5 01:00"] {
            assert_eq!(text.parse::<Moment>().map(|moment| moment.0), Ok(500));
        }
        for bad in ["", "2026-13-01", "2026-11-22T00:00:00Z", "yesterday"] {
            assert!(bad.parse::<Day>().is_err(), "{bad}");
        }
    }
}
