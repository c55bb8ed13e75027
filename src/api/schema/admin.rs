//! What operators see of every owner.

use serde::Serialize;
use utoipa::ToSchema;

use super::{LanguageName, SessionWord, SpanWord, StateWord, history::HistoryRun, rfc3339, run::RunStatus};
use crate::{
    domain::{finding::Finding, owner::Principal, text::ms},
    services::{
        admin::{Activity, Measured, Overview, Owner, Part, SizePage},
        runs::RunView,
        sessions::SessionView,
    },
};

/// Runs and sessions in one answer.
const LIVE_MAX: usize = 200;

/// The current activity of this server's process.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OverviewResult {
    /// Maximum number of programs that run at once.
    pub slots: usize,
    /// Number of running programs.
    pub slots_taken: usize,
    /// Number of runs that wait for their conversation or a slot.
    pub waiting: usize,
    /// Number of sandboxes of runs, sessions and standbys.
    pub sandboxes: usize,
    /// The newest 200 runs that wait or run, of all owners.
    #[schema(max_items = 200)]
    pub runs: Vec<LiveRun>,
    /// Number of runs that wait or run.
    pub runs_total: usize,
    /// The newest 200 open sessions, of all owners.
    #[schema(max_items = 200)]
    pub sessions: Vec<LiveSession>,
    /// Number of open sessions.
    pub sessions_total: usize,
    /// Owners with waiting or running runs, by name.
    pub queue: Vec<OwnerQueue>,
    /// Sandboxes that are started ahead of need.
    pub standbys: Vec<StandbyCount>,
}

/// A run that waits or runs.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LiveRun {
    /// Its id.
    pub run_id: String,
    /// Its owner.
    pub owner: String,
    /// The owner's conversation.
    pub conversation_id: String,
    /// The language's own name.
    #[schema(value_type = LanguageName)]
    pub language: String,
    /// Whether it is a cell of a session.
    pub cell: bool,
    /// Its state.
    #[schema(value_type = StateWord)]
    pub state: &'static str,
    /// Its place among the waiting runs of its owner, counted from 1; only while it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// When it was created (RFC 3339).
    #[schema(format = DateTime)]
    pub created_at: String,
    /// How long the program has run so far, in milliseconds.
    pub wall_ms: u64,
}

/// An open session.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LiveSession {
    /// Its id.
    pub session_id: String,
    /// Its owner.
    pub owner: String,
    /// The owner's conversation.
    pub conversation_id: String,
    /// The language's own name.
    #[schema(value_type = LanguageName)]
    pub language: String,
    /// Its current state.
    #[schema(value_type = SessionWord)]
    pub state: &'static str,
    /// When it was opened (RFC 3339).
    #[schema(format = DateTime)]
    pub created_at: String,
    /// Time since its last use, in milliseconds.
    pub idle_ms: u64,
    /// Cells that were executed.
    pub cells: u64,
    /// Its memory limit, in bytes.
    pub memory_bytes_max: u64,
}

/// The waiting and running runs of an owner.
#[derive(Debug, Serialize, ToSchema)]
pub struct OwnerQueue {
    pub owner: String,
    pub waiting: usize,
    pub running: usize,
}

/// Standbys of a language.
#[derive(Debug, Serialize, ToSchema)]
pub struct StandbyCount {
    pub language: String,
    /// How far they have started: `starting`, `ready` or `warm`.
    pub stage: &'static str,
    pub count: usize,
}

/// Every owner.
#[derive(Debug, Serialize, ToSchema)]
pub struct OwnerList {
    /// By name.
    pub owners: Vec<OwnerResult>,
}

/// An owner, by a token or a folder.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OwnerResult {
    pub owner: String,
    /// Number of valid tokens that were made for people. `MCP_API_TOKEN` is not counted.
    pub tokens: usize,
    /// Number of clients that are signed in.
    pub connections: usize,
    pub conversations: usize,
    /// Disk space of the conversations that were measured, in bytes.
    pub bytes: u64,
    /// Number of conversations that were not measured yet: repeat the request.
    pub unmeasured: usize,
    /// Number of runs and cells that began today, in UTC, and have ended.
    pub runs_today: i64,
    /// Their CPU time, in milliseconds, as far as it is known.
    pub cpu_ms_today: i64,
    /// Number of runs that wait or run.
    pub live_runs: usize,
    /// Number of open sessions.
    pub sessions: usize,
}

/// A page of conversations.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SizeList {
    /// The largest first; those that were not measured yet last.
    pub conversations: Vec<ConversationSize>,
    /// Give it as `cursor` for the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Number of conversations on all pages.
    pub total: usize,
    /// Disk space of all conversations that were measured, in bytes.
    pub total_bytes: u64,
    /// Number of conversations that were not measured yet: repeat the request.
    pub unmeasured: usize,
}

/// A conversation.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConversationSize {
    pub owner: String,
    pub conversation_id: String,
    /// Its disk space, in bytes; absent where it was not measured yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// When a run began in it or a client wrote to it (RFC 3339).
    #[schema(format = DateTime)]
    pub last_used_at: String,
}

/// Runs that are slow, or failed.
#[derive(Debug, Serialize, ToSchema)]
pub struct NotableList {
    /// The slowest first, or the newest.
    pub runs: Vec<HistoryRun>,
}

/// How runs ended, how long they took and what was refused.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActivityResult {
    /// The last hour by minute, or the last day by quarter of an hour.
    #[schema(value_type = SpanWord)]
    pub span: &'static str,
    /// The length of an interval, in seconds.
    pub part_seconds: i64,
    /// Every interval, oldest first.
    pub parts: Vec<ActivityPart>,
    /// Whether the database answered; otherwise only refusals are counted.
    pub has_history: bool,
}

/// What happened in an interval.
#[derive(Debug, Serialize, ToSchema)]
pub struct ActivityPart {
    /// When the interval begins (RFC 3339).
    #[schema(format = DateTime)]
    pub begin: String,
    /// Runs of all servers that began in it and have ended, by how they ended.
    pub runs: Vec<Count>,
    /// How long these runs took, waiting included; absent without runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub took: Option<Percentiles>,
    /// Requests for a run that this process refused, by code, since its start.
    pub refusals: Vec<Count>,
}

/// How often one thing happened.
#[derive(Debug, Serialize, ToSchema)]
pub struct Count {
    /// What is counted: the code of an error, or how a run ended.
    pub word: &'static str,
    pub count: u64,
}

/// Percentiles in milliseconds, interpolated within the buckets of a histogram.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Percentiles {
    pub p50_ms: u64,
    pub p90_ms: u64,
    pub p99_ms: u64,
}

/// The findings of `mcp-sandbox-server doctor`, except those about the addresses, which the server itself uses.
#[derive(Debug, Serialize, ToSchema)]
pub struct FindingList {
    /// In the order of the checks.
    pub findings: Vec<Finding>,
}

impl From<&Overview> for OverviewResult {
    fn from(now: &Overview) -> Self {
        let gauges = &now.gauges;
        let queue = now.queue.iter().map(|(owner, &(waiting, running))| OwnerQueue {
            owner: owner.name().to_owned(),
            waiting,
            running,
        });
        let standbys = gauges.standbys.iter().map(|(language, stage, count)| StandbyCount {
            language: language.to_string(),
            stage,
            count: *count,
        });
        Self {
            slots: gauges.load.slots,
            slots_taken: gauges.load.slots_taken,
            waiting: gauges.load.waiting,
            sandboxes: gauges.leased,
            runs: now.runs.iter().take(LIVE_MAX).map(LiveRun::from).collect(),
            runs_total: now.runs.len(),
            sessions: now.sessions.iter().take(LIVE_MAX).map(LiveSession::from).collect(),
            sessions_total: now.sessions.len(),
            queue: queue.collect(),
            standbys: standbys.collect(),
        }
    }
}

impl From<&RunView> for LiveRun {
    fn from(run: &RunView) -> Self {
        let owner = run.conversation.owner.name().to_owned();
        let RunStatus { run_id, conversation_id, language, cell, state, position, created_at, wall_ms, .. } =
            RunStatus::brief(run);
        Self { run_id, owner, conversation_id, language, cell, state, position, created_at, wall_ms }
    }
}

impl From<&SessionView> for LiveSession {
    fn from(session: &SessionView) -> Self {
        Self {
            session_id: session.session.to_string(),
            owner: session.conversation.owner.name().to_owned(),
            conversation_id: session.conversation.id.to_string(),
            language: session.language.to_string(),
            state: session.state.word(),
            created_at: rfc3339(session.created_unix_s),
            idle_ms: ms(session.idle),
            cells: session.cells,
            memory_bytes_max: session.memory_bytes_max,
        }
    }
}

impl From<(&Principal, &Owner)> for OwnerResult {
    fn from((name, owner): (&Principal, &Owner)) -> Self {
        let Measured { conversations, bytes, unmeasured } = owner.conversations;
        Self {
            owner: name.name().to_owned(),
            tokens: owner.tokens,
            connections: owner.connections,
            conversations,
            bytes,
            unmeasured,
            runs_today: owner.runs_today,
            cpu_ms_today: owner.cpu_ms_today,
            live_runs: owner.runs,
            sessions: owner.sessions,
        }
    }
}

impl From<&SizePage> for SizeList {
    fn from(page: &SizePage) -> Self {
        let conversations = page.conversations.iter().map(|(last, bytes)| ConversationSize {
            owner: last.key.owner.name().to_owned(),
            conversation_id: last.key.id.to_string(),
            bytes: *bytes,
            last_used_at: rfc3339(last.unix_s),
        });
        Self {
            conversations: conversations.collect(),
            cursor: page.after.as_ref().map(ToString::to_string),
            total: page.all.conversations,
            total_bytes: page.all.bytes,
            unmeasured: page.all.unmeasured,
        }
    }
}

impl From<&Activity> for ActivityResult {
    fn from(activity: &Activity) -> Self {
        Self {
            span: activity.span.as_str(),
            part_seconds: activity.span.part_ms() / 1000,
            parts: activity.parts.iter().map(ActivityPart::from).collect(),
            has_history: activity.has_history,
        }
    }
}

impl From<&Part> for ActivityPart {
    fn from(part: &Part) -> Self {
        let count = |(&word, &count): (&&'static str, &u64)| Count { word, count };
        Self {
            begin: rfc3339(part.begin_ms.div_euclid(1000)),
            runs: part.runs.iter().map(count).collect(),
            took: part.took_ms.map(|[p50_ms, p90_ms, p99_ms]| Percentiles { p50_ms, p90_ms, p99_ms }),
            refusals: part.refusals.iter().map(count).collect(),
        }
    }
}
