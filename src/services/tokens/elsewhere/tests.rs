//! Which changes are another process's, and which are remembered; the id of the configured token; and what is counted
//! where, when the clock is set back.

use super::*;
use crate::{
    adapters::database::Database,
    domain::{
        ConversationKey, Figures, Grant, Language, TokenLimits,
        clock::{ManualClock, SystemClock},
        token::SUBJECT_MARK,
    },
    ports::{
        database::TokenStore,
        history::{HistoryLine, HistoryStore as _, LineEnd},
    },
    services::tokens::NewToken,
};

const NOW_S: i64 = 1_800_000_000;

fn tokens() -> Tokens {
    Tokens::unstored(Arc::new(SystemClock))
}

fn new() -> NewToken {
    let (owner, grant) = (Principal::default(), Grant::default());
    NewToken { owner, name: "client".into(), grant, expires_unix_ms: None, parent: None }
}

#[test]
fn operators_make_tokens_at_other_servers_and_no_connections() {
    let (here, elsewhere) = (tokens(), tokens());
    let connection = elsewhere.new_connection(new()).expect("a connection");
    let token = TokenRecord { prefix: "mcps_012345".to_owned(), ..connection.clone() };
    let subject = TokenRecord { prefix: SUBJECT_MARK.to_owned(), ..connection.clone() };
    for (record, expected) in [(connection, 0), (token, 1), (subject, 0)] {
        let records = [record];
        assert_eq!(here.follower.found(&here.known.read(), &records).len(), expected, "{records:?}");
    }
}

#[tokio::test]
async fn a_revocation_that_ends_nothing_is_not_remembered() {
    let (_folder, database) = Database::in_new_folder().await;
    let store: Arc<dyn TokenStore> = Arc::new(database);
    let tokens = Tokens::new(&"0123456789abcdef".to_owned().into(), store, Arc::new(SystemClock));
    let (record, _) = tokens.create(new()).await.expect("a token");
    tokens.revoke(record.id).await.expect("it ends");
    for id in [record.id, TokenId::new()] {
        tokens.revoke(id).await.expect_err("nothing ends");
    }
    assert!(tokens.follower.own.lock().is_empty());
}

#[test]
fn changes_of_this_process_are_remembered_until_they_are_known() {
    let (tokens, new) = (tokens(), new());
    let remembered = || tokens.follower.own.lock().len();
    for _ in 0..3 {
        let record = tokens.new_connection(new.clone()).expect("a connection");
        assert_eq!(remembered(), 1);
        tokens.learn(vec![record.clone()]);
        assert_eq!(remembered(), 0);
        tokens.follower.own(record.id, true);
        assert_eq!(remembered(), 1);
        tokens.learn(vec![TokenRecord { revoked_unix_ms: Some(1), ..record }]);
        assert_eq!(remembered(), 0);
    }
}

#[test]
fn configured_id_follows_from_the_token_and_the_key() {
    let secret = |text: &str| SecretString::from(text.to_owned());
    let of = |token: &str, key: &str| id(&secret(token), &secret(key));
    assert_eq!(of("token", "key"), of("token", "key"));
    assert_ne!(of("token", "key"), of("other", "key"));
    assert_ne!(of("token", "key"), of("token", "other"));
    let text = of("token", "key").to_string();
    assert_eq!(text.parse(), Ok(of("token", "key")), "{text}");
}

#[tokio::test]
async fn own_runs_count_once_after_the_clock_was_set_back() {
    let (_folder, database) = Database::in_new_folder().await;
    let store: Arc<dyn TokenStore> = Arc::new(database.clone());
    let (clock, server) = (Arc::new(ManualClock::at(NOW_S)), InstanceId::new());
    let tokens = Tokens::new(&"0123456789abcdef".to_owned().into(), store, clock.clone());
    tokens.count_elsewhere(server);
    let limits = TokenLimits { bytes_per_day: Some(500), ..TokenLimits::default() };
    let (owner, grant): (Principal, _) = ("ann".parse().expect("an owner"), Grant { limits, ..Grant::default() });
    let new = NewToken { owner: owner.clone(), name: "laptop".into(), grant, expires_unix_ms: None, parent: None };
    let (made, _) = tokens.create(new).await.expect("a token");
    let language: Language = "python".parse().expect("a language");
    let line = |instance, begun_s: i64| {
        let end = LineEnd {
            word: "exited".parse().expect("a word"),
            failure: None,
            figures: Figures { stdout_bytes: 300, ..Figures::default() },
            ..LineEnd::lost(begun_s * 1000, "")
        };
        HistoryLine {
            run: format!("run-{:012x}7000{begun_s:016x}", begun_s * 1000).parse().expect("an id"),
            token: Some(made.id),
            language: language.clone(),
            instance,
            end: Some(end),
            ..HistoryLine::begun(ConversationKey::new(owner.clone(), "c".parse().expect("an id")))
        }
    };
    let may_begin_after = async |run: HistoryLine| {
        database.write(&[run]).await.expect("stored");
        tokens.read_spent(READ_EVERY).await.expect("read");
        tokens.begin(&owner.by(made.id), &language).is_ok()
    };
    // Of the process before this one.
    assert!(may_begin_after(line(server, NOW_S - 7200)).await);
    clock.set(NOW_S - 3600);
    tokens.read_spent(1).await.expect("not due");
    assert!(may_begin_after(line(server, NOW_S - 3599)).await, "this process counts it itself");
    let far_ahead = line(InstanceId::new(), NOW_S + 365 * 24 * 3600);
    assert!(may_begin_after(far_ahead).await, "of a server whose clock was a year ahead");
    assert!(!may_begin_after(line(InstanceId::new(), NOW_S - 3598)).await, "another server's");
}
