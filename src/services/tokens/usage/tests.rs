//! What is counted where, when the clock is set back.

use super::*;
use crate::{
    adapters::database::Database,
    domain::{
        clock::ManualClock,
        id::Language,
        outcome::Figures,
        owner::{ConversationKey, Principal},
        token::{Grant, TokenLimits},
    },
    ports::history::{HistoryLine, HistoryStore as _, LineEnd},
    services::tokens::NewToken,
};

const NOW_S: i64 = 1_800_000_000;

#[tokio::test]
async fn own_runs_count_once_after_the_clock_was_set_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let database = Database::connect(&format!("sqlite://{}/x.db", folder.path().display())).expect("a database");
    database.prepare().await.expect("tables");
    let store: Arc<dyn TokenStore> = Arc::new(database.clone());
    let (clock, server) = (Arc::new(ManualClock::at(NOW_S)), InstanceId::new());
    let tokens = Tokens::new(&"0123456789abcdef".to_owned().into(), Some(store), clock.clone());
    tokens.count_beside(server);
    let limits = TokenLimits { bytes_per_day: Some(500), ..TokenLimits::default() };
    let (owner, grant): (Principal, _) = ("ann".parse().expect("an owner"), Grant { limits, ..Grant::default() });
    let new = NewToken { owner: owner.clone(), name: "laptop".into(), grant, expires_unix_ms: None, parent: None };
    let (made, _) = tokens.create(new).await.expect("a token");
    let language: Language = "python".parse().expect("a language");
    let line = |instance, begun_s: i64| {
        let end = LineEnd {
            unix_ms: begun_s * 1000,
            word: "exited".parse().expect("a word"),
            exit_code: Some(0),
            signal: None,
            oom_killed: false,
            failure: None,
            sentence: String::new(),
            figures: Figures { stdout_bytes: 300, ..Figures::default() },
            files: Vec::new(),
        };
        HistoryLine {
            run: format!("run-{:012x}7000{begun_s:016x}", begun_s * 1000).parse().expect("an id"),
            conversation: ConversationKey::new(owner.clone(), "c".parse().expect("an id")),
            token: Some(made.id),
            is_cell: false,
            language: language.clone(),
            image: String::new(),
            program_sha256: String::new(),
            source: None,
            instance,
            end: Some(end),
        }
    };
    let may_begin_after = async |run: HistoryLine| {
        database.write(&[run]).await.expect("stored");
        tokens.read_spent(&database, READ_EVERY).await.expect("read");
        tokens.begin(&owner.by(made.id), &language).is_ok()
    };
    // Of the process before this one.
    assert!(may_begin_after(line(server, NOW_S - 7200)).await);
    clock.set(NOW_S - 3600);
    tokens.read_spent(&database, 1).await.expect("not due");
    assert!(may_begin_after(line(server, NOW_S - 3599)).await, "this process counts it itself");
    let far_ahead = line(InstanceId::new(), NOW_S + 365 * 24 * 3600);
    assert!(may_begin_after(far_ahead).await, "of a server whose clock was a year ahead");
    assert!(!may_begin_after(line(InstanceId::new(), NOW_S - 3598)).await, "another server's");
}
