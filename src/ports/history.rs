//! The history port: a line for each run and cell, sums of them by day, and the keys of requests that began runs.

use std::{str::FromStr, time::Duration};

use async_trait::async_trait;

use super::database::DbResult;
use crate::domain::{
    Code, ConversationId, ConversationKey, Ended, Figures, InstanceId, Language, Principal, RunId, TokenId,
    words::words,
};

/// A run or a cell. It began at the moment in its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryLine {
    pub run: RunId,
    pub conversation: ConversationKey,
    /// By which token it was begun.
    pub token: Option<TokenId>,
    pub is_cell: bool,
    pub language: Language,
    /// The digest of the image.
    pub image: String,
    /// In hexadecimal digits.
    pub program_sha256: String,
    /// The beginning of the program, where the settings say so.
    pub source: Option<String>,
    /// The server that ran it.
    pub instance: InstanceId,
    pub end: Option<LineEnd>,
}

#[cfg(test)]
impl HistoryLine {
    /// A run that has begun, of which nothing else matters.
    pub fn begun(conversation: ConversationKey) -> Self {
        Self {
            run: RunId::new(),
            conversation,
            token: None,
            is_cell: false,
            language: Language::default(),
            image: String::new(),
            program_sha256: String::new(),
            source: None,
            instance: InstanceId::new(),
            end: None,
        }
    }
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineEnd {
    pub unix_ms: i64,
    pub word: EndWord,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub oom_killed: bool,
    /// Why the server failed it.
    pub failure: Option<Code>,
    /// As clients read it.
    pub sentence: String,
    pub figures: Figures,
    /// The most CPU time that it can have used; `None` where its figures have what it used, or it has none.
    pub cpu_max: Option<Duration>,
    /// Names of the files that it created or changed: the first of them.
    pub files: Vec<String>,
}

/// One word for how a run ended: an outcome's, or one of two more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndWord(&'static str);

impl EndWord {
    /// The server failed the run.
    pub const FAILED: Self = Self("failed");
    /// The server ended before the run did.
    pub const SERVER_LOST: Self = Self("server_lost");

    /// The words that are no outcome's, with what they mean, for documents.
    pub const OTHERS: [(&'static str, &'static str); 2] = [
        (Self::FAILED.0, "The server could not run the program, or lost it: `error` has the code."),
        (
            Self::SERVER_LOST.0,
            "How it ended is not known: the server ended before the run did, or the database did not take its end.",
        ),
    ];

    /// Every word.
    pub fn all() -> impl Iterator<Item = &'static str> {
        Ended::WORDS.into_iter().chain(Self::OTHERS.map(|(word, _)| word))
    }

    pub fn as_str(self) -> &'static str {
        self.0
    }
}

impl From<Ended> for EndWord {
    fn from(ended: Ended) -> Self {
        Self(ended.word())
    }
}

impl FromStr for EndWord {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = || Self::all().collect::<Vec<_>>().join(", ");
        Self::all().find(|word| *word == text).map(Self).ok_or_else(|| format!("it must be one of {}", known()))
    }
}

/// Which lines. Moments are unix milliseconds of their begin: `from` and later, before `to`.
#[derive(Debug, Clone, Default)]
pub struct LineFilter {
    pub owner: Option<Principal>,
    pub conversation: Option<ConversationId>,
    pub language: Option<Language>,
    pub ended: Option<EndWord>,
    pub from: Option<i64>,
    pub to: Option<i64>,
    /// Only those before this run, newest first.
    pub after: Option<RunId>,
}

words! {
    /// Which runs are worth a look.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Notable: word {
        /// Those that took longest from begin to end, waiting included.
        Slowest = "slowest",
        /// The newest that ended in any way but with status 0 or by being cancelled.
        Failing = "failing",
    }
}

impl FromStr for Notable {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text).ok_or("it must be slowest or failing")
    }
}

/// How many runs began in one part of time, ended in one way and took about as long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartLine {
    /// The part's number: unix milliseconds by its length.
    pub part: i64,
    pub ended: EndWord,
    /// They took at most `TOOK_MS[class]` and more than the one before; the last class has no bound.
    pub class: usize,
    pub runs: u64,
}

/// The bounds of [`PartLine::class`], in milliseconds from begin to end.
pub const TOOK_MS: [i64; 31] = [
    5, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1_000, 1_500, 2_000, 3_000, 5_000, 7_000, 10_000, 15_000,
    20_000, 30_000, 50_000, 70_000, 100_000, 150_000, 200_000, 300_000, 600_000, 3_600_000,
];

/// What an owner used of a language on a day in UTC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageLine {
    pub owner: Principal,
    /// Days since 1970-01-01.
    pub day: i64,
    pub language: Language,
    /// Cells included.
    pub runs: i64,
    pub cells: i64,
    /// Those that the server failed.
    pub failed: i64,
    pub wall_ms: i64,
    /// The sum over the runs whose runner reports it.
    pub cpu_ms: i64,
    pub output_bytes: i64,
}

/// Which days: `from` to `to`, both included.
#[derive(Debug, Clone, Default)]
pub struct UsageFilter {
    pub owner: Option<Principal>,
    pub from: Option<i64>,
    pub to: Option<i64>,
}

/// Lines and their sums, beside the keys that began the runs.
#[async_trait]
pub trait HistoryStore: KeyStore {
    /// Stores lines, all or none. A line that is there gets its end, unless it has one; a line that was reported as
    /// lost gets its true end. Each end adds to the usage once, however often it is stored.
    async fn write(&self, lines: &[HistoryLine]) -> DbResult<()>;

    /// The line of a run of this owner.
    async fn line(&self, who: &Principal, run: RunId) -> DbResult<Option<HistoryLine>>;

    /// The newest that match, at most `limit`.
    async fn page(&self, filter: &LineFilter, limit: usize) -> DbResult<Vec<HistoryLine>>;

    /// What each of these lines takes, as [`Self::newest_bytes`] measures it.
    async fn page_bytes(&self, filter: &LineFilter, limit: usize) -> DbResult<Vec<u64>>;

    /// By day, newest first, then owner and language; at most `limit`.
    async fn usage(&self, filter: &UsageFilter, limit: usize) -> DbResult<Vec<UsageLine>>;

    /// Of the lines that began at this moment or later and have an end, at most `limit`, with at most 4096 characters
    /// of each program.
    async fn notable(&self, which: Notable, from: i64, limit: usize) -> DbResult<Vec<HistoryLine>>;

    /// Of the same lines, counts in parts of time of this length.
    async fn parts(&self, from: i64, part_ms: i64) -> DbResult<Vec<PartLine>>;

    /// Says that a server lives.
    async fn beat(&self, instance: InstanceId, beat: i64) -> DbResult<()>;

    /// Removes beats that are older and whose servers have no line without an end; how many there were.
    async fn forget_beats(&self, before: i64) -> DbResult<u64>;

    /// The servers that have lines without an end, and the last beat of each.
    async fn open(&self) -> DbResult<Vec<(InstanceId, Option<i64>)>>;

    /// Ends the open lines of a server that began before a moment as [`EndWord::SERVER_LOST`], at another moment and
    /// with this sentence; how many there were.
    async fn close_lost(&self, instance: InstanceId, before: i64, ended: i64, sentence: &str) -> DbResult<u64>;

    /// How many lines there are, which takes a look at each.
    async fn count(&self) -> DbResult<u64>;

    /// When the oldest line began without the `count` oldest, which are read; `None` when there are no more.
    async fn begun_after_oldest(&self, count: u64) -> DbResult<Option<i64>>;

    /// When the oldest began of the newest `limit` lines that began before this moment, and what these take: 1 KiB for
    /// each, and its texts of any length, which are not read. `None` when there are none.
    async fn newest_bytes(&self, before_unix_ms: i64, limit: u64) -> DbResult<Option<(i64, u64)>>;

    /// Removes the oldest lines that began before this moment, at most `limit`; how many there were.
    async fn remove_before(&self, unix_ms: i64, limit: u64) -> DbResult<u64>;
}

/// A request that began a run, by the key that its client chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    pub owner: Principal,
    pub key: String,
    /// The digest of the request.
    pub digest: [u8; 32],
    pub run: RunId,
    /// The conversation that the request named.
    pub conversation: Option<ConversationId>,
    pub unix_ms: i64,
}

/// Keys of requests.
#[async_trait]
pub trait KeyStore: Send + Sync {
    /// The newest since this moment.
    async fn keys(&self, since_unix_ms: i64, limit: usize) -> DbResult<Vec<KeyRecord>>;

    /// Stores a key, unless there is one that is not older than `since_unix_ms`: then that one.
    async fn keep(&self, key: &KeyRecord, since_unix_ms: i64) -> DbResult<Option<KeyRecord>>;

    /// Removes the key of a run that did not begin.
    async fn release(&self, key: &KeyRecord) -> DbResult<()>;

    /// Removes keys that are older; at most `limit`.
    async fn forget(&self, before_unix_ms: i64, limit: u64) -> DbResult<u64>;
}
