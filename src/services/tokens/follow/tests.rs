//! Which changes are another process's, and which are remembered.

use super::*;
use crate::{
    adapters::database::Database,
    domain::{
        clock::SystemClock,
        token::{Grant, SUBJECT_MARK},
    },
    ports::database::TokenStore,
    services::tokens::NewToken,
};

fn tokens() -> Tokens {
    Tokens::new(&"0123456789abcdef".to_owned().into(), None, Arc::new(SystemClock))
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
        assert_eq!(here.follower.found(&here.known.read(), &records).count(), expected, "{records:?}");
    }
}

#[tokio::test]
async fn a_revocation_that_ends_nothing_is_not_remembered() {
    let folder = tempfile::tempdir().expect("a folder");
    let database = Database::connect(&format!("sqlite://{}/x.db", folder.path().display())).expect("a database");
    database.prepare().await.expect("tables");
    let store: Arc<dyn TokenStore> = Arc::new(database);
    let tokens = Tokens::new(&"0123456789abcdef".to_owned().into(), Some(store), Arc::new(SystemClock));
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
