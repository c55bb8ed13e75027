//! The database fails: what a history does meanwhile and afterwards.

use std::{path::Path, process::Command, sync::Arc};

use mcp_sandbox_server::{
    adapters::database::Database,
    domain::{
        error::{Code, Failure},
        id::{InstanceId, RunId},
    },
    ports::history::{EndWord, HistoryStore as _},
    services::history::DEAD_AFTER,
};
use tempfile::TempDir;

use super::{
    Base,
    recorder::{Recorder, success},
    run_at,
};
use crate::support::{dice::Dice, postgres::Postgres, until};

/// A file system of its own for a database, which can be full or read-only.
pub struct Disk(pub TempDir);

impl Disk {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        mount(&["-t", "tmpfs", "-o", "size=4m", "none"], folder.path());
        Self(folder)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(self.0.path()).status());
    }
}

pub fn mount(arguments: &[&str], at: &Path) {
    let done = Command::new("mount").args(arguments).arg(at).status().expect("mount");
    assert!(done.success(), "this test mounts a file system: run it as root");
}

/// More than the queue holds is put in while nothing can be stored; then lines are stored again.
async fn fills_and_recovers(recorder: Recorder, restore: impl AsyncFnOnce()) {
    until("it is known to fail", async || {
        recorder.end(RunId::new(), Ok(&success()));
        recorder.history.counts().errors > 0
    })
    .await;
    let before = recorder.history.counts();
    for _ in 0..10_500 {
        recorder.end(RunId::new(), Err(&Failure::new(Code::EngineLost, "zero\0")));
    }
    let during = recorder.history.counts();
    // A batch may be on its way to the database, outside of the queue.
    assert!(during.lost >= 200 && during.written == before.written, "{during:?}");
    restore().await;
    until("lines come again", async || recorder.history.counts().written >= during.written + 10_000).await;
    let run = RunId::new();
    recorder.begin(run);
    recorder.end(run, Ok(&success()));
    until("a new one as well", async || {
        let found = recorder.history.run(&"ann".parse().expect("an owner"), run).await;
        found.is_ok_and(|line| line.source.as_deref() == Some("zero\u{fffd}and"))
    })
    .await;
    recorder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_on_a_full_disk_loses_what_does_not_fit_and_goes_on() {
    let disk = Disk::new();
    let folder = disk.0.path().to_owned();
    let database = Database::connect(&format!("sqlite://{}/state.db", folder.display())).expect("an address");
    database.prepare().await.expect("tables");
    std::fs::write(folder.join("filler"), vec![0; 8 << 20]).expect_err("the disk is full");
    let recorder = Recorder::start(database.clone(), InstanceId::new());
    fills_and_recovers(recorder, async || {
        std::fs::remove_file(folder.join("filler")).expect("room");
        mount(&["-o", "remount,size=64m"], &folder);
    })
    .await;
    database.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_that_is_locked_is_waited_for_outside_of_runs() {
    let base = Base::sqlite().await;
    let recorder = Recorder::start(base.database.clone(), InstanceId::new());
    let pool = sqlx::AnyPool::connect(&base.url).await.expect("another process");
    let mut other = pool.acquire().await.expect("a connection");
    sqlx::query("BEGIN EXCLUSIVE").execute(&mut *other).await.expect("a lock");
    fills_and_recovers(recorder, async || {
        sqlx::query("ROLLBACK").execute(&mut *other).await.expect("no lock");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_that_is_away_is_waited_for_outside_of_runs() {
    let mut cluster = Postgres::start().await;
    let database = Database::connect(&cluster.url()).expect("an address");
    database.prepare().await.expect("tables");
    let recorder = Recorder::start(database.clone(), InstanceId::new());
    cluster.pause();
    fills_and_recovers(recorder, async || cluster.resume().await).await;
    database.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_that_is_read_only_is_waited_for_outside_of_runs() {
    let cluster = Postgres::start().await;
    let database = Database::connect(&cluster.url()).expect("an address");
    database.prepare().await.expect("tables");
    let set = |mode: &str| {
        assert!(cluster.sql(&format!("ALTER SYSTEM SET default_transaction_read_only = {mode}")));
        assert!(cluster.sql("SELECT pg_reload_conf()"));
    };
    let recorder = Recorder::start(database.clone(), InstanceId::new());
    set("on");
    fills_and_recovers(recorder, async || set("off")).await;
    database.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_that_a_database_does_not_take_at_the_end_are_counted() {
    let cluster = Postgres::start().await;
    let database = Database::connect(&cluster.url()).expect("an address");
    database.prepare().await.expect("tables");
    let recorder = Recorder::start(database.clone(), InstanceId::new());
    recorder.end(RunId::new(), Ok(&success()));
    until("the first is stored", async || recorder.history.counts().written == 1).await;
    let pool = sqlx::AnyPool::connect(&cluster.url()).await.expect("another process");
    let mut other = pool.acquire().await.expect("a connection");
    for statement in ["BEGIN", "LOCK TABLE history IN ACCESS EXCLUSIVE MODE"] {
        sqlx::query(statement).execute(&mut *other).await.expect("a lock");
    }
    for _ in 0..10 {
        recorder.end(RunId::new(), Ok(&success()));
    }
    let history = Arc::clone(&recorder.history);
    recorder.stop().await;
    let counts = history.counts();
    assert_eq!((counts.written, counts.lost), (1, 10), "{counts:?}");
    sqlx::query("ROLLBACK").execute(&mut *other).await.expect("no lock");
    drop(other);
    database.close().await;
}

#[tokio::test]
async fn a_run_whose_end_was_lost_is_not_told_as_running_for_ever() {
    let base = Base::sqlite().await;
    let recorder = Recorder::start(base.database.clone(), InstanceId::new());
    let written = || recorder.history.counts().written;
    let running = RunId::new();
    let over = run_at(running.unix_ms() - 1000, &mut Dice::new(3));
    for run in [over, running] {
        recorder.begin(run);
    }
    until("both are stored", async || written() == 2).await;
    // Nothing is stored meanwhile: the test has one thread.
    for _ in 0..=10_000 {
        recorder.end(RunId::new(), Ok(&success()));
    }
    recorder.end(over, Ok(&success()));
    assert_eq!(recorder.history.counts().lost, 2);
    tokio::time::pause();
    tokio::time::advance(DEAD_AFTER).await;
    tokio::time::resume();
    let owner = "ann".parse().expect("an owner");
    let word = async |run| {
        let line = base.database.line(&owner, run).await.expect("an answer").expect("a line");
        line.end.map(|end| end.word)
    };
    until("it is told as lost", async || word(over).await == Some(EndWord::SERVER_LOST)).await;
    assert_eq!(word(running).await, None, "its end is still to come");
    until("there is room", async || written() >= 10_000).await;
    recorder.end(running, Ok(&success()));
    until("its end is stored", async || word(running).await.is_some_and(|word| word.as_str() == "exited")).await;
    recorder.stop().await;
}
