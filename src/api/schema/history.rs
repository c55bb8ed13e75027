//! The history and the usage, as operators see them.

use std::str::FromStr;

use serde::Serialize;
use time::{Date, OffsetDateTime, format_description::well_known::Rfc3339};
use utoipa::ToSchema;

use super::{EndedWord, ErrorCode, FiguresResult, texts::text};
use crate::{
    domain::{error::Code, text::rfc3339},
    ports::history::{EndWord, HistoryLine, UsageLine},
    services::history::HistoryPage,
};

/// A page of the history.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct HistoryList {
    /// Newest first.
    pub runs: Vec<HistoryRun>,
    /// Give it as `cursor` for the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A run or a cell in the history.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HistoryRun {
    /// Its id.
    pub run_id: String,
    /// The owner.
    pub owner: String,
    /// The owner's conversation.
    pub conversation_id: String,
    /// The token that began it; absent for `MCP_API_TOKEN` and a user's own process.
    pub token_id: Option<String>,
    /// Whether it is a cell of a session.
    pub cell: bool,
    /// The language's own name.
    pub language: String,
    /// The digest of the container image.
    pub image: String,
    /// SHA-256 of the program, in hexadecimal digits.
    pub program_sha256: String,
    /// The beginning of the program, where `SANDBOX_HISTORY__SOURCE` is on.
    pub source: Option<String>,
    /// The server that ran it.
    pub instance_id: String,
    /// When it was created (RFC 3339).
    pub begun_at: String,
    /// When it ended (RFC 3339); absent while it waits or runs.
    pub ended_at: Option<String>,
    /// From its creation to its end, waiting included, in milliseconds; absent while it waits or runs.
    pub took_ms: Option<i64>,
    /// How it ended; absent while it waits or runs.
    #[schema(value_type = EndedWord)]
    pub ended: Option<&'static str>,
    /// The exit status, when the program ended by itself.
    pub exit_code: Option<i32>,
    /// Why the server could not run it, or lost it.
    #[schema(value_type = ErrorCode)]
    pub error: Option<&'static str>,
    /// What happened and what to do about it, in one sentence.
    pub sentence: Option<String>,
    /// The resources it used, once it has ended.
    pub figures: Option<FiguresResult>,
    /// Names of files that it created or changed, at most 64.
    pub files: Vec<String>,
}

/// Usage by day, owner and language.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct UsageList {
    /// Newest day first, then by owner and language.
    pub usage: Vec<UsageResult>,
    /// Whether the list is incomplete: ask for fewer days, or for one owner.
    pub truncated: bool,
}

/// The usage of one owner in one language on one day.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageResult {
    /// The owner.
    pub owner: String,
    /// The day in UTC, as 2026-01-31, on which the runs were created.
    pub day: String,
    /// The language's own name.
    pub language: String,
    /// Runs and cells that ended, except those whose server was lost.
    pub runs: i64,
    /// How many of these were cells.
    pub cells: i64,
    /// How many of these the server could not run.
    pub failed: i64,
    /// Running time of the programs, in milliseconds.
    pub wall_ms: i64,
    /// CPU time, in milliseconds, as far as it is known.
    pub cpu_ms: i64,
    /// Bytes that programs printed, kept or not.
    pub output_bytes: i64,
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
        Ok(Self(i64::from(moment.date().to_julian_day() - epoch())))
    }
}

text!(Moment, Day);

fn epoch() -> i32 {
    OffsetDateTime::UNIX_EPOCH.date().to_julian_day()
}

fn day(days: i64) -> String {
    let day = i32::try_from(days).ok().and_then(|days| Date::from_julian_day(epoch().saturating_add(days)).ok());
    day.map(|day| day.to_string()).unwrap_or_default()
}

impl From<&HistoryPage> for HistoryList {
    fn from(page: &HistoryPage) -> Self {
        Self {
            runs: page.lines.iter().map(HistoryRun::from).collect(),
            cursor: page.after.as_ref().map(ToString::to_string),
        }
    }
}

impl From<&HistoryLine> for HistoryRun {
    fn from(line: &HistoryLine) -> Self {
        let end = line.end.as_ref();
        Self {
            run_id: line.run.to_string(),
            owner: line.conversation.owner.name().to_owned(),
            conversation_id: line.conversation.id.to_string(),
            token_id: line.token.map(|token| token.to_string()),
            cell: line.is_cell,
            language: line.language.to_string(),
            image: line.image.clone(),
            program_sha256: line.program_sha256.clone(),
            source: line.source.clone(),
            instance_id: line.instance.to_string(),
            begun_at: rfc3339(line.run.unix_ms().div_euclid(1000)),
            ended_at: end.map(|end| rfc3339(end.unix_ms.div_euclid(1000))),
            took_ms: end.map(|end| end.unix_ms.saturating_sub(line.run.unix_ms()).max(0)),
            ended: end.map(|end| end.word.as_str()),
            exit_code: end.and_then(|end| end.exit_code),
            error: end.and_then(|end| end.failure).map(Code::as_str),
            sentence: end.map(|end| end.sentence.clone()),
            figures: end.filter(|end| end.word != EndWord::SERVER_LOST).map(|end| (&end.figures).into()),
            files: end.map(|end| end.files.clone()).unwrap_or_default(),
        }
    }
}

impl From<&UsageLine> for UsageResult {
    fn from(line: &UsageLine) -> Self {
        let UsageLine { runs, cells, failed, wall_ms, cpu_ms, output_bytes, .. } = *line;
        let (owner, day, language) = (line.owner.name().to_owned(), day(line.day), line.language.to_string());
        Self { owner, day, language, runs, cells, failed, wall_ms, cpu_ms, output_bytes }
    }
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
