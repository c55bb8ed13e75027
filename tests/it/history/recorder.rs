//! A history and the task that stores it: what a killed process leaves, and what is removed.

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader, Read as _},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use mcp_sandbox_server::{
    adapters::database::Database,
    domain::{
        clock::{Clock, ManualClock, SETTLING, SystemClock},
        error::Failure,
        id::{InstanceId, RunId},
        outcome::{Ended, Figures, Limits, Outcome},
        token::Grant,
        trace::TraceContext,
    },
    ports::{
        database::TokenStore,
        history::{EndWord, HistoryLine, HistoryStore, LineFilter, UsageFilter},
        observer::{BeginFacts, Observer, ProgramFacts, RunFacts, Stages},
    },
    services::{
        history::{DEAD_AFTER, History, HistoryOptions},
        tokens::{NewToken, Tokens},
    },
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{BEGAN, Base, DAY_MS, ended, key, line, run_at};
use crate::support::{dice::Dice, scale::how_many, until};

pub const KEEPS_ALL: HistoryOptions =
    HistoryOptions { source_bytes_max: 0, kept: None, kept_max: 1_000_000, kept_bytes: u64::MAX };

/// A history on a database, and the task that stores it.
pub struct Recorder {
    pub history: Arc<History>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Recorder {
    pub fn start(database: Database, instance: InstanceId) -> Self {
        Self::with(database, instance, HistoryOptions { source_bytes_max: 10, ..KEEPS_ALL })
    }

    pub fn with(database: Database, instance: InstanceId, options: HistoryOptions) -> Self {
        Self::by(Arc::new(SystemClock), database, instance, options)
    }

    fn by(clock: Arc<dyn Clock>, database: Database, instance: InstanceId, options: HistoryOptions) -> Self {
        let history = Arc::new(History::new(Arc::new(database), instance, clock, options));
        let (stop, follower) = (CancellationToken::new(), Arc::clone(&history));
        let until = stop.clone();
        let task = tokio::spawn(async move { follower.follow(until).await });
        Self { history, stop, task }
    }

    pub fn begin(&self, run: RunId) {
        let (conversation, language) = (key("ann", "c"), "python".parse().expect("a language"));
        let (image, program) = ("sha256:abc", ProgramFacts { bytes: b"zero\0and more", sha256: "00" });
        let facts =
            BeginFacts { run, conversation: &conversation, is_cell: false, language: &language, image, program };
        self.history.run_begun(&facts);
    }

    pub fn end(&self, run: RunId, end: Result<&Outcome, &Failure>) {
        let (conversation, language) = (key("ann", "c"), "python".parse().expect("a language"));
        let (image, program) = ("sha256:abc", ProgramFacts { bytes: b"zero\0and more", sha256: "00" });
        let begin =
            BeginFacts { run, conversation: &conversation, is_cell: false, language: &language, image, program };
        self.history.run_over(&RunFacts {
            begin,
            trace: TraceContext::root(),
            args: 0,
            stdin_bytes: 0,
            limits: &Limits::default(),
            begun_unix_s: 0,
            ended_unix_s: 0,
            stages: Stages::default(),
            end,
            lost: None,
            files: Vec::new(),
            files_truncated: false,
        });
    }

    pub async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("it ends well");
    }
}

pub fn success() -> Outcome {
    let (ended, figures) = (Ended::Exited { code: 0 }, Figures::default());
    Outcome { ended, oom_killed: false, limits: Limits::default(), figures }
}

fn has_exited(line: &HistoryLine) -> bool {
    line.end.as_ref().is_some_and(|end| end.word.as_str() == "exited")
}

/// The process that is killed. It does nothing unless the test starts it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a part of lines_of_a_killed_writer_are_whole"]
async fn writer() {
    let url = std::env::var("WRITER_URL").expect("the test that starts this names a database");
    let instance = std::env::var("WRITER_INSTANCE").expect("an instance").parse().expect("an instance");
    let database = Database::connect(&url).expect("an address");
    database.prepare().await.expect("tables");
    let recorder = Recorder::start(database.clone(), instance);
    let store = Arc::new(database.clone());
    let tokens = Tokens::new(&"0123456789abcdef".to_owned().into(), store, Arc::new(SystemClock));
    let making = async {
        loop {
            let (owner, name) = ("ann".parse().expect("an owner"), "a".to_owned());
            let new = NewToken { owner, name, grant: Grant::default(), expires_unix_ms: None, parent: None };
            let (made, _) = tokens.create(new).await.expect("a token");
            // Told when it is stored, as an answer would.
            println!("\n{}", made.id);
            tokens.revoke(made.id).await.expect("its end");
            println!("\nended {}", made.id);
        }
    };
    let recording = async {
        loop {
            let run = RunId::new();
            recorder.begin(run);
            tokio::time::sleep(Duration::from_millis(1)).await;
            recorder.end(run, Ok(&success()));
        }
    };
    let answering = async {
        loop {
            // One line for each page: the pipe is read when this process is dead.
            let newest = database.page(&LineFilter::default(), 10).await.expect("lines");
            if let Some(line) = newest.iter().find(|line| has_exited(line)) {
                println!("\n{}", line.run);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::join!(making, recording, answering);
}

pub async fn lines_of_a_killed_writer_are_whole(base: Base) {
    let (instance, mut dice) = (InstanceId::new(), Dice::new(9));
    let test = std::env::current_exe().expect("this program");
    let kills = how_many(50, 1000);
    let (mut told, mut revoked, mut named) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for number in 0..kills {
        let mut child = Command::new(&test)
            .args(["--exact", "history::recorder::writer", "--ignored", "--nocapture"])
            .env("WRITER_URL", &base.url)
            .env("WRITER_INSTANCE", instance.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a writer");
        let (mut output, mut said) = (BufReader::new(child.stdout.take().expect("its output")), String::new());
        // Half of them are killed at any moment from their start, which a busy machine may not let them outlive.
        while number % 2 == 0 && !(said.contains("\ntoken-") && said.contains("\nrun-")) {
            assert!(output.read_line(&mut said).expect("text") > 0, "the writer ended: {said}");
        }
        tokio::time::sleep(Duration::from_millis(60 + dice.below(200))).await;
        child.kill().expect("it is killed");
        output.read_to_string(&mut said).expect("text");
        child.wait().expect("it is dead");
        // It may have been killed within the last line.
        let lines = said.rsplit_once('\n').map_or("", |(whole, _)| whole).lines();
        told.extend(lines.clone().filter(|line| line.starts_with("token-")).map(ToOwned::to_owned));
        revoked.extend(lines.clone().filter_map(|line| line.strip_prefix("ended ")).map(ToOwned::to_owned));
        named.extend(lines.filter(|line| line.starts_with("run-")).map(ToOwned::to_owned));
    }
    let recorder = Recorder::start(base.database.clone(), instance);
    until("what was left is told as lost", async || base.database.open().await.is_ok_and(|open| open.is_empty())).await;
    let lines = base.database.page(&LineFilter::default(), usize::MAX >> 1).await.expect("lines");
    let whole = lines.iter().filter(|line| has_exited(line));
    let mut ends = whole.clone().filter_map(|line| line.end.as_ref());
    assert!(ends.all(|end| !end.sentence.is_empty() && end.exit_code == Some(0)));
    let stored: BTreeSet<_> = whole.clone().map(|line| line.run.to_string()).collect();
    assert!(!named.is_empty() && named.is_subset(&stored), "{:?} of {}", named.difference(&stored), named.len());
    let lost = lines.iter().filter(|line| line.end.as_ref().is_some_and(|end| end.word == EndWord::SERVER_LOST));
    assert_eq!(whole.clone().count() + lost.count(), lines.len());
    let usage = base.database.usage(&UsageFilter::default(), 10).await.expect("sums");
    assert_eq!(usage.iter().map(|sum| sum.runs).sum::<i64>(), i64::try_from(whole.count()).expect("few"));
    assert!(usage.iter().any(|sum| sum.runs > 0), "the writers wrote");
    let kept = base.database.changed(0).await.expect("tokens");
    let over = kept.iter().filter(|token| token.revoked_unix_ms.is_some());
    let over: BTreeSet<_> = over.map(|token| token.id.to_string()).collect();
    assert!(!revoked.is_empty() && revoked.is_subset(&over), "{} are valid", revoked.difference(&over).count());
    let kept: BTreeSet<_> = kept.iter().map(|token| token.id.to_string()).collect();
    assert!(!told.is_empty() && told.is_subset(&kept), "{} of {} tokens", told.difference(&kept).count(), told.len());
    let (lines, tokens, ends, runs) = (lines.len(), told.len(), revoked.len(), named.len());
    println!("{kills} kills: {lines} lines, all whole; {tokens} tokens, {ends} ends and {runs} runs told, all there");
    recorder.stop().await;
}

/// Stores lines of now, and one of each of the last thirty years before.
async fn many_years(base: &Base) -> i64 {
    let (mut dice, now) = (Dice::new(5), RunId::new().unix_ms());
    let mut lines: Vec<_> = (1..31).map(|n| run_at(now - n * DAY_MS * 365, &mut dice)).collect();
    lines.extend((0..20).map(|n| run_at(now - n * 1000, &mut dice)));
    let lines: Vec<_> = lines.into_iter().map(|run| line(run, key("ann", "c"), Some(ended("exited", 0)))).collect();
    base.database.write(&lines).await.expect("stored");
    now
}

async fn left(base: &Base) -> usize {
    base.database.page(&LineFilter::default(), 1000).await.expect("lines").len()
}

pub async fn old_lines_are_removed(base: Base) {
    many_years(&base).await;
    let options = HistoryOptions { kept_max: 5, ..KEEPS_ALL };
    let recorder = Recorder::with(base.database.clone(), InstanceId::new(), options);
    until("the newest are left", async || left(&base).await == 5).await;
    recorder.stop().await;
}

pub async fn the_oldest_lines_are_removed_for_their_size(base: Base) {
    let mut dice = Dice::new(7);
    let end = ended("exited", BEGAN);
    let lines: Vec<_> =
        (0..2100).map(|n| line(run_at(BEGAN + n, &mut dice), key("ann", "c"), Some(end.clone()))).collect();
    for batch in lines.chunks(500) {
        base.database.write(batch).await.expect("stored");
    }
    // The bytes are added up a thousand lines at a time, each of 1 to 1.5 KiB.
    let options = HistoryOptions { kept_bytes: 1_500_000, ..KEEPS_ALL };
    let recorder = Recorder::with(base.database.clone(), InstanceId::new(), options);
    let left = async || base.database.page(&LineFilter::default(), 3000).await.expect("lines");
    until("two thousand are left", async || left().await.len() == 2000).await;
    assert_eq!(left().await.last().map(|line| line.run), Some(lines[100].run), "the newest");
    recorder.stop().await;
}

#[tokio::test]
async fn lines_are_removed_for_their_age_by_a_clock_that_was_right_for_a_while() {
    let base = Base::sqlite().await;
    let clock = Arc::new(ManualClock::at(many_years(&base).await / 1000));
    let kept = Some(Duration::from_hours(24 * 365 * 10 + 24 * 180));
    let options = HistoryOptions { kept, ..KEEPS_ALL };
    base.database.beat(InstanceId::new(), 1).await.expect("a beat of a server that is gone");
    let pool = sqlx::AnyPool::connect(&base.url).await.expect("another process");
    let beats = async || {
        let count = sqlx::query_scalar::<sqlx::Any, i64>("SELECT COUNT(*) FROM servers");
        count.fetch_one(&pool).await.expect("a number")
    };
    let recorder = Recorder::by(Arc::clone(&clock) as _, base.database.clone(), InstanceId::new(), options);
    recorder.begin(RunId::new());
    until("a line is stored after the first round", async || left(&base).await != 50).await;
    assert_eq!((left(&base).await, beats().await), (51, 2), "at the start none is removed");
    // Again, where a round met a busy database.
    let mut tries = 0..1000;
    while (left(&base).await, beats().await) != (31, 1) {
        tries.next().expect("those of ten years and of now are left, and the server that lives");
        clock.set(clock.unix_s() + i64::try_from(SETTLING.as_secs()).expect("a time"));
        tokio::time::pause();
        tokio::time::advance(SETTLING).await;
        tokio::time::resume();
    }
    recorder.stop().await;
}

#[tokio::test]
async fn a_server_that_was_silent_together_with_the_database_is_not_dead() {
    let base = Base::sqlite().await;
    let (other, run) = (InstanceId::new(), RunId::new());
    let begun = HistoryLine { instance: other, ..line(run, key("ann", "c"), None) };
    base.database.write(&[begun]).await.expect("stored");
    base.database.beat(other, 1).await.expect("a beat");
    let recorder = Recorder::start(base.database.clone(), InstanceId::new());
    let owner = "ann".parse().expect("an owner");
    let found = async |run| base.database.line(&owner, run).await.expect("an answer");
    // A round comes before lines that are queued.
    let next_round = async || {
        let next = RunId::new();
        recorder.begin(next);
        until("a line is stored after the round", async || found(next).await.is_some()).await;
    };
    let pass = async |time: Duration| {
        tokio::time::pause();
        tokio::time::advance(time).await;
        tokio::time::resume();
        next_round().await;
    };
    let ended = async || found(run).await.expect("a line").end.map(|end| end.word);
    next_round().await;
    pass(DEAD_AFTER * 2).await;
    assert_eq!(ended().await, None, "it has not had its turn yet");
    for _ in 0..4 {
        pass(DEAD_AFTER / 3).await;
    }
    assert_eq!(ended().await, Some(EndWord::SERVER_LOST));
    recorder.stop().await;
}
