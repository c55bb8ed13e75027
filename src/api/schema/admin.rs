//! What operators see of every owner.

use std::collections::BTreeMap;

use super::{LanguageName, SessionWord, SpanWord, StateWord, answers, history::HistoryRun, moment, rfc3339};
use crate::{
    domain::{Language, Principal, finding::Finding, text::ms},
    ports::history::HistoryLine,
    services::{
        admin::{Activity, Overview, Owner, Part, SizePage},
        conversations::LastUse,
        runs::{RunState, RunView},
        sessions::SessionView,
    },
};

/// Runs and sessions in one answer.
const LIVE_MAX: usize = 200;

answers! {
    /// The current activity of this server's process.
    pub struct OverviewResult(now: &Overview) {
        /// Maximum number of programs that run at once.
        slots: usize = now.gauges.load.slots,
        /// Number of running programs.
        slots_taken: usize = now.gauges.load.slots_taken,
        /// Number of runs that wait for their conversation or a slot.
        waiting: usize = now.gauges.load.waiting,
        /// Number of sandboxes of runs, sessions and standbys.
        sandboxes: usize = now.gauges.leased,
        /// The newest 200 runs that wait or run, of all owners.
        #[schema(max_items = 200)]
        runs: Vec<LiveRun> = now.runs.iter().take(LIVE_MAX).map(LiveRun::from).collect(),
        /// Number of runs that wait or run.
        runs_total: usize = now.runs.len(),
        /// The newest 200 open sessions, of all owners.
        #[schema(max_items = 200)]
        sessions: Vec<LiveSession> = now.sessions.iter().take(LIVE_MAX).map(LiveSession::from).collect(),
        /// Number of open sessions.
        sessions_total: usize = now.sessions.len(),
        /// Owners with waiting or running runs, by name.
        queue: Vec<OwnerQueue> = now.queue.iter().map(Into::into).collect(),
        /// Sandboxes that are started ahead of need.
        standbys: Vec<StandbyCount> = now.gauges.standbys.iter().map(Into::into).collect(),
    }

    /// A run that waits or runs.
    pub struct LiveRun(run: &RunView) {
        /// Its id.
        run_id: String = run.run.to_string(),
        /// Its owner.
        owner: String = run.conversation.owner.name().to_owned(),
        /// The owner's conversation.
        conversation_id: String = run.conversation.id.to_string(),
        /// The language's own name.
        #[schema(value_type = LanguageName)]
        language: String = run.language.to_string(),
        /// Whether it is a cell of a session.
        cell: bool = run.is_cell,
        /// Its state.
        #[schema(value_type = StateWord)]
        state: &'static str = run.state.word(),
        /// Its position among the waiting runs of its owner, counted from 1; only while it waits.
        position: Option<u32> = if let RunState::Queued { position } = run.state { position } else { None },
        /// When it was created (RFC 3339).
        #[schema(format = DateTime)]
        created_at: String = rfc3339(run.created_unix_s),
        /// How long the program has run so far, in milliseconds.
        wall_ms: u64 = ms(run.wall),
    }

    /// An open session.
    pub struct LiveSession(session: &SessionView) {
        /// Its id.
        session_id: String = session.session.to_string(),
        /// Its owner.
        owner: String = session.conversation.owner.name().to_owned(),
        /// The owner's conversation.
        conversation_id: String = session.conversation.id.to_string(),
        /// The language's own name.
        #[schema(value_type = LanguageName)]
        language: String = session.language.to_string(),
        /// Its current state.
        #[schema(value_type = SessionWord)]
        state: &'static str = session.state.word(),
        /// When it was opened (RFC 3339).
        #[schema(format = DateTime)]
        created_at: String = rfc3339(session.created_unix_s),
        /// Time since its last use, in milliseconds.
        idle_ms: u64 = ms(session.idle),
        /// Cells that were executed.
        cells: u64 = session.cells,
        /// Its memory limit, in bytes.
        memory_bytes_max: u64 = session.memory_bytes_max,
    }

    /// The waiting and running runs of an owner.
    pub struct OwnerQueue((owner, (waiting, running)): (&Principal, &(usize, usize))) {
        owner: String = owner.name().to_owned(),
        waiting: usize = *waiting,
        running: usize = *running,
    }

    /// Standbys of a language.
    pub struct StandbyCount((language, so_far, count): &(Language, &'static str, usize)) {
        language: String = language.to_string(),
        /// How far they have started: `starting`, `ready` or `warm`.
        stage: &'static str = so_far,
        count: usize = *count,
    }

    /// Every owner.
    pub struct OwnerList(owners: &BTreeMap<Principal, Owner>) {
        /// By name.
        owners: Vec<OwnerResult> = owners.iter().map(OwnerResult::from).collect(),
    }

    /// An owner, by a token or a folder.
    pub struct OwnerResult((name, owner): (&Principal, &Owner)) {
        owner: String = name.name().to_owned(),
        /// Number of valid tokens that were made for people. `MCP_API_TOKEN` is not counted.
        tokens: usize = owner.tokens,
        /// Number of clients that are signed in.
        connections: usize = owner.connections,
        conversations: usize = owner.conversations.conversations,
        /// Disk space of the conversations that were measured, in bytes.
        bytes: u64 = owner.conversations.bytes,
        /// Number of conversations that were not measured yet: repeat the request.
        unmeasured: usize = owner.conversations.unmeasured,
        /// Number of runs and cells that began today, in UTC, and have ended.
        runs_today: i64 = owner.runs_today,
        /// Their CPU time, in milliseconds, as far as it is known.
        cpu_ms_today: i64 = owner.cpu_ms_today,
        /// Number of runs that wait or run.
        live_runs: usize = owner.runs,
        /// Number of open sessions.
        sessions: usize = owner.sessions,
    }

    /// A page of conversations.
    pub struct SizeList(page: &SizePage) {
        /// The largest first; those that were not measured yet last.
        conversations: Vec<ConversationSize> = page.conversations.iter().map(Into::into).collect(),
        /// Give it as `cursor` for the next page; absent on the last.
        cursor: Option<String> = page.after.as_ref().map(ToString::to_string),
        /// Number of conversations on all pages.
        total: usize = page.all.conversations,
        /// Disk space of all conversations that were measured, in bytes.
        total_bytes: u64 = page.all.bytes,
        /// Number of conversations that were not measured yet: repeat the request.
        unmeasured: usize = page.all.unmeasured,
    }

    /// A conversation.
    pub struct ConversationSize((last, bytes): &(LastUse, Option<u64>)) {
        owner: String = last.key.owner.name().to_owned(),
        conversation_id: String = last.key.id.to_string(),
        /// Its disk space, in bytes; absent where it was not measured yet.
        bytes: Option<u64> = *bytes,
        /// When a run began in it or a client wrote to it (RFC 3339).
        #[schema(format = DateTime)]
        last_used_at: String = rfc3339(last.unix_s),
    }

    /// Runs that are slow, or failed.
    pub struct NotableList(lines: &[HistoryLine]) {
        /// The slowest first, or the newest.
        runs: Vec<HistoryRun> = lines.iter().map(HistoryRun::from).collect(),
    }

    /// How runs ended, how long they took and what was refused.
    pub struct ActivityResult(activity: &Activity) {
        /// The last hour by minute, or the last day by quarter of an hour.
        #[schema(value_type = SpanWord)]
        span: &'static str = activity.span.as_str(),
        /// The length of an interval, in seconds.
        part_seconds: i64 = activity.span.part_ms() / 1000,
        /// Every interval, oldest first.
        parts: Vec<ActivityPart> = activity.parts.iter().map(ActivityPart::from).collect(),
        /// Whether the database answered; otherwise only refusals are counted.
        has_history: bool = activity.has_history,
    }

    /// What happened in an interval.
    pub struct ActivityPart(part: &Part) {
        /// When the interval begins (RFC 3339).
        #[schema(format = DateTime)]
        begin: String = moment(part.begin_ms),
        /// Runs of all servers that began in it and have ended, by how they ended.
        runs: Vec<Count> = part.runs.iter().map(Into::into).collect(),
        /// How long these runs took, waiting included; absent without runs.
        took: Option<Percentiles> = part.took_ms.map(Percentiles::from),
        /// Requests for a run that this process refused, by code, since its start.
        refusals: Vec<Count> = part.refusals.iter().map(Into::into).collect(),
    }

    /// How often one thing happened.
    pub struct Count((what, count): (&&'static str, &u64)) {
        /// What is counted: the code of an error, or how a run ended.
        word: &'static str = what,
        count: u64 = *count,
    }

    /// Percentiles in milliseconds, interpolated within the buckets of a histogram.
    pub struct Percentiles([p50, p90, p99]: [u64; 3]) {
        p50_ms: u64 = p50,
        p90_ms: u64 = p90,
        p99_ms: u64 = p99,
    }

    /// The findings of `mcp-sandbox-server doctor`, except those about the addresses, which the server itself uses.
    pub struct FindingList(found: Vec<Finding>) {
        /// In the order of the checks.
        findings: Vec<Finding> = found,
    }
}
