//! What other processes change while a server reads the database.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use mcp_sandbox_server::{
    adapters::database::Database,
    domain::{
        clock::{Clock as _, ManualClock},
        id::{InstanceId, TokenId},
        token::{AccessRecord, Grant, TokenRecord},
    },
    ports::database::{DatabaseError, ROUND_MAX, TokenStore},
    services::tokens::{NewToken, Tokens, digest},
};
use secrecy::{ExposeSecret as _, SecretString};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::support::{server::TOKEN, until};

/// A database that answers late: between two readings of a round another process revokes a token, and a minute passes.
struct Slow {
    database: Database,
    clock: Arc<ManualClock>,
    revokes: Mutex<Option<TokenId>>,
    /// Fails to store when tokens were used.
    fails: AtomicBool,
    /// Does not answer the next reading.
    hangs: AtomicBool,
    /// Answers the next reading after [`LATE`].
    is_late: AtomicBool,
}

/// As a database that has much to do.
const LATE: Duration = Duration::from_millis(400);

impl Slow {
    fn on(database: Database, clock: &Arc<ManualClock>) -> Self {
        let [fails, hangs, is_late] = [(); 3].map(|()| AtomicBool::new(false));
        Self { database, clock: Arc::clone(clock), revokes: Mutex::default(), fails, hangs, is_late }
    }
}

#[async_trait]
impl TokenStore for Slow {
    async fn changed(&self, since: i64) -> Result<Vec<TokenRecord>, DatabaseError> {
        if self.hangs.swap(false, Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if self.is_late.swap(false, Ordering::Relaxed) {
            tokio::time::sleep(LATE).await;
        }
        self.database.changed(since).await
    }

    async fn access(&self, since: i64) -> Result<Vec<AccessRecord>, DatabaseError> {
        let revoked = self.revokes.lock().expect("no panic").take();
        if let Some(id) = revoked {
            self.database.revoke(&id, self.clock.unix_ms()).await?;
            self.clock.set(self.clock.unix_s() + 60);
        }
        self.database.access(since).await
    }

    async fn insert(&self, token: &TokenRecord) -> Result<(), DatabaseError> {
        self.database.insert(token).await
    }

    async fn revoke(&self, token: &TokenId, at_unix_ms: i64) -> Result<Option<Vec<TokenRecord>>, DatabaseError> {
        self.database.revoke(token, at_unix_ms).await
    }

    async fn bind_connections(
        &self,
        configured: &TokenId,
        before: &[TokenId],
        at_unix_ms: i64,
    ) -> Result<Vec<TokenId>, DatabaseError> {
        self.database.bind_connections(configured, before, at_unix_ms).await
    }

    async fn restore(&self, subject: &TokenId, at_unix_ms: i64) -> Result<bool, DatabaseError> {
        self.database.restore(subject, at_unix_ms).await
    }

    async fn used(&self, tokens: &[(TokenId, i64)]) -> Result<(), DatabaseError> {
        assert!(tokens.is_sorted(), "another server may write the same rows at once: {tokens:?}");
        if self.fails.load(Ordering::Relaxed) {
            return Err(DatabaseError("it is away".to_owned()));
        }
        self.database.used(tokens).await
    }

    async fn spent(
        &self,
        tokens: &[TokenId],
        since: i64,
        without: (InstanceId, i64),
    ) -> Result<Vec<(TokenId, (u64, u64))>, DatabaseError> {
        self.database.spent(tokens, since, without).await
    }

    async fn forget(&self, before_unix_ms: i64) -> Result<(), DatabaseError> {
        self.database.forget(before_unix_ms).await
    }
}

/// A database of its own, and its folder.
async fn database() -> (TempDir, Database) {
    let folder = tempfile::tempdir().expect("a folder");
    let database = Database::connect(&format!("sqlite://{}/x.db", folder.path().display())).expect("a database");
    database.prepare().await.expect("tables");
    (folder, database)
}

fn of_ann() -> NewToken {
    let (owner, grant) = ("ann".parse().expect("an owner"), Grant::default());
    NewToken { owner, name: "laptop".into(), grant, expires_unix_ms: None, parent: None }
}

#[tokio::test]
async fn a_revocation_during_a_slow_reading_is_read_in_the_next_round() {
    let (_folder, database) = database().await;
    let clock = Arc::new(ManualClock::at(1_800_000_000));
    let store = Arc::new(Slow::on(database, &clock));
    let slow: Arc<dyn TokenStore> = store.clone();
    let tokens = Tokens::new(&TOKEN.to_owned().into(), slow, clock);
    let (record, secret) = tokens.create(of_ann()).await.expect("a token");
    let is_accepted = || tokens.caller(secret.expose_secret().as_bytes()).is_some();
    *store.revokes.lock().expect("no panic") = Some(record.id);
    tokens.load().await;
    assert!(is_accepted(), "it was revoked after the tokens were read");
    tokens.load().await;
    assert!(!is_accepted());
}

#[tokio::test]
async fn a_connection_that_is_stored_and_not_known_yet_ends_with_its_token() {
    let (_folder, database) = database().await;
    let store: Arc<dyn TokenStore> = Arc::new(database.clone());
    let tokens = Tokens::new(&TOKEN.to_owned().into(), store, Arc::new(ManualClock::at(1_800_000_000)));
    let (parent, _) = tokens.create(of_ann()).await.expect("a token");
    let new = NewToken { parent: Some(parent.id), ..of_ann() };
    let connection = tokens.new_connection(new).expect("a connection");
    database.insert(&connection).await.expect("it is stored");
    tokens.revoke(parent.id).await.expect("it is revoked");
    // The sign-in that stored it goes on.
    let access = AccessRecord { digest: digest(b"access"), connection: connection.digest, expires_unix_ms: i64::MAX };
    tokens.learn(vec![connection]);
    tokens.accept(access);
    assert!(tokens.caller(b"access").is_none());
}

#[tokio::test]
async fn a_connection_of_another_configured_token_that_is_made_after_the_start_ends() {
    let (_folder, database) = database().await;
    let server = |configured: &str| {
        let store: Arc<dyn TokenStore> = Arc::new(database.clone());
        let configured: SecretString = configured.to_owned().into();
        let clock = Arc::new(ManualClock::at(1_800_000_000));
        let tokens = Tokens::new(&configured, store, clock);
        tokens.bind(&configured, std::iter::once("a key".to_owned().into()));
        tokens
    };
    let (old, new) = (server(TOKEN), server("7c1e5b0f9d3a4e68b2f70c5d91ae3846"));
    old.load().await;
    new.load().await;
    let made = NewToken { parent: old.configured_id(), ..of_ann() };
    let connection = old.new_connection(made).expect("a connection");
    database.insert(&connection).await.expect("it is stored");
    let access = AccessRecord { digest: digest(b"access"), connection: connection.digest, expires_unix_ms: i64::MAX };
    new.load().await;
    new.accept(access);
    assert!(new.caller(b"access").is_some(), "it is not known to be of another token");
    new.read_all_next();
    new.load().await;
    assert!(new.caller(b"access").is_none());
}

#[tokio::test]
async fn a_revocation_by_a_server_whose_clock_is_behind_is_found_when_all_is_read() {
    let (_folder, database) = database().await;
    let server = |at| {
        let store: Arc<dyn TokenStore> = Arc::new(database.clone());
        Tokens::new(&TOKEN.to_owned().into(), store, Arc::new(ManualClock::at(at)))
    };
    let (server, behind) = (server(1_800_000_060), server(1_800_000_000));
    let (record, secret) = server.create(of_ann()).await.expect("a token");
    let is_accepted = || server.caller(secret.expose_secret().as_bytes()).is_some();
    server.load().await;
    behind.revoke(record.id).await.expect("it is revoked");
    server.load().await;
    assert!(is_accepted(), "by its time it was read already");
    server.read_all_next();
    server.load().await;
    assert!(!is_accepted());
}

#[tokio::test]
async fn last_uses_are_written_in_one_order_by_all_servers() {
    let (_folder, database) = database().await;
    let clock = Arc::new(ManualClock::at(1_800_000_000));
    let store: Arc<dyn TokenStore> = Arc::new(Slow::on(database, &clock));
    let tokens = Tokens::new(&TOKEN.to_owned().into(), store, clock);
    for _ in 0..20 {
        let (_, secret) = tokens.create(of_ann()).await.expect("a token");
        tokens.caller(secret.expose_secret().as_bytes()).expect("a caller");
    }
    tokens.load().await;
    let listed = tokens.list(None).await.expect("tokens");
    assert_eq!(listed.iter().filter(|token| token.used_unix_ms.is_some()).count(), 20);
}

#[tokio::test]
async fn a_token_outlives_a_start_with_a_clock_that_is_far_ahead() {
    const BEGAN: i64 = 1_800_000_000;
    let (_folder, database) = database().await;
    let server = |at| {
        let store: Arc<dyn TokenStore> = Arc::new(database.clone());
        Tokens::new(&TOKEN.to_owned().into(), store, Arc::new(ManualClock::at(at)))
    };
    let tomorrow = Some((BEGAN + 24 * 3600) * 1000);
    let (_, secret) = server(BEGAN).create(NewToken { expires_unix_ms: tomorrow, ..of_ann() }).await.expect("a token");
    let is_accepted = async |at| {
        let server = server(at);
        server.load().await;
        server.caller(secret.expose_secret().as_bytes()).is_some()
    };
    assert!(!is_accepted(BEGAN + 365 * 24 * 3600).await);
    assert!(is_accepted(BEGAN).await);
}

#[tokio::test]
async fn what_a_token_opened_ends_with_it_while_the_database_is_away() {
    let (_folder, database) = database().await;
    let store: Arc<dyn TokenStore> = Arc::new(database.clone());
    let clock = Arc::new(ManualClock::at(1_800_000_000));
    let tokens = Tokens::new(&TOKEN.to_owned().into(), store, clock.clone());
    let expires_unix_ms = Some(1_800_000_060_000);
    let (_, secret) = tokens.create(NewToken { expires_unix_ms, ..of_ann() }).await.expect("a token");
    let opened = tokens.caller(secret.expose_secret().as_bytes()).expect("a caller").token;
    database.close().await;
    tokens.load().await;
    assert!(!opened.ended().is_cancelled());
    clock.set(1_800_000_060);
    tokens.load().await;
    assert!(opened.ended().is_cancelled());
}

#[tokio::test]
async fn a_token_that_expired_by_a_clock_that_was_ahead_opens_streams_again() {
    let (_folder, database) = database().await;
    let store: Arc<dyn TokenStore> = Arc::new(database);
    let clock = Arc::new(ManualClock::at(1_800_000_000));
    let tokens = Tokens::new(&TOKEN.to_owned().into(), store, clock.clone());
    let expires_unix_ms = Some(1_800_000_060_000);
    let (record, secret) = tokens.create(NewToken { expires_unix_ms, ..of_ann() }).await.expect("a token");
    let caller = || tokens.caller(secret.expose_secret().as_bytes());
    let before = caller().expect("a caller").token;
    clock.set(1_800_000_060);
    tokens.load().await;
    assert!(before.ended().is_cancelled() && caller().is_none());
    clock.set(1_800_000_000);
    let again = caller().expect("it is valid").token;
    assert!(!again.ended().is_cancelled() && Arc::ptr_eq(&again, &caller().expect("it is valid").token));
    tokens.revoke(record.id).await.expect("it is revoked");
    assert!(again.ended().is_cancelled() && caller().is_none());
}

/// A store with the token that another server has made.
async fn slow_store_of_another() -> (TempDir, Arc<ManualClock>, Arc<Slow>, SecretString) {
    let (folder, database) = database().await;
    let clock = Arc::new(ManualClock::at(1_800_000_000));
    let other: Arc<dyn TokenStore> = Arc::new(database.clone());
    let other = Tokens::new(&TOKEN.to_owned().into(), other, clock.clone());
    let (_, secret) = other.create(of_ann()).await.expect("a token");
    let store = Arc::new(Slow::on(database, &clock));
    (folder, clock, store, secret)
}

#[tokio::test]
async fn a_reading_that_is_never_answered_is_given_up() {
    let (_folder, clock, store, secret) = slow_store_of_another().await;
    store.hangs.store(true, Ordering::Relaxed);
    let slow: Arc<dyn TokenStore> = store.clone();
    let tokens = Arc::new(Tokens::new(&TOKEN.to_owned().into(), slow, clock));
    let stop = CancellationToken::new();
    let following = tokio::spawn(Arc::clone(&tokens).follow(stop.clone()));
    until("the first round waits", async || !store.hangs.load(Ordering::Relaxed)).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_mins(1)).await;
    tokio::time::resume();
    until("the next round reads", async || tokens.caller(secret.expose_secret().as_bytes()).is_some()).await;
    store.hangs.store(true, Ordering::Relaxed);
    until("a round waits again", async || !store.hangs.load(Ordering::Relaxed)).await;
    stop.cancel();
    tokio::time::timeout(ROUND_MAX / 2, following).await.expect("the stop waits for no answer").expect("it ended");
}

#[tokio::test]
async fn a_token_that_another_server_made_is_known_after_a_slow_reading() {
    let (_folder, clock, store, secret) = slow_store_of_another().await;
    let slow: Arc<dyn TokenStore> = store.clone();
    let tokens = Tokens::new(&TOKEN.to_owned().into(), slow, clock);
    // On a busy machine its other statements may take the rest of the time.
    until("it is read", async || {
        store.is_late.store(true, Ordering::Relaxed);
        tokens.catch_up().await
    })
    .await;
    assert!(tokens.caller(secret.expose_secret().as_bytes()).is_some());
}

#[tokio::test]
async fn last_uses_that_were_not_stored_are_stored_by_the_next_round() {
    let (_folder, database) = database().await;
    let clock = Arc::new(ManualClock::at(1_800_000_000));
    let store = Arc::new(Slow::on(database.clone(), &clock));
    store.fails.store(true, Ordering::Relaxed);
    let failing: Arc<dyn TokenStore> = store.clone();
    let tokens = Tokens::new(&TOKEN.to_owned().into(), failing, clock);
    let (_, secret) = tokens.create(of_ann()).await.expect("a token");
    tokens.caller(secret.expose_secret().as_bytes()).expect("a caller");
    let stored = async || database.changed(0).await.expect("tokens")[0].used_unix_ms;
    tokens.load().await;
    assert_eq!(stored().await, None);
    store.fails.store(false, Ordering::Relaxed);
    tokens.load().await;
    assert_eq!(stored().await, Some(1_800_000_000_000));
}

#[tokio::test]
async fn the_list_has_the_last_use_at_any_server() {
    let (_folder, database) = database().await;
    let clock = Arc::new(ManualClock::at(1_800_000_000));
    let server = || {
        let store: Arc<dyn TokenStore> = Arc::new(database.clone());
        Tokens::new(&TOKEN.to_owned().into(), store, clock.clone())
    };
    let (here, elsewhere) = (server(), server());
    let (_, secret) = here.create(of_ann()).await.expect("a token");
    let listed = async || here.list(None).await.expect("tokens")[0].used_unix_ms;
    for used_s in [1_800_000_000, 1_800_000_060] {
        clock.set(used_s);
        elsewhere.load().await;
        elsewhere.caller(secret.expose_secret().as_bytes()).expect("a caller");
        elsewhere.load().await;
        assert_eq!(listed().await, Some(used_s * 1000));
        clock.set(used_s + 30);
        here.caller(secret.expose_secret().as_bytes()).expect("a caller");
        assert_eq!(listed().await, Some((used_s + 30) * 1000), "it is not stored yet");
    }
}
