//! What other processes change while a server reads the database.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use mcp_sandbox_server::{
    adapters::database::Database,
    domain::{
        clock::{Clock as _, ManualClock},
        id::{InstanceId, TokenId},
        token::{AccessRecord, Grant, TokenDigest, TokenRecord},
    },
    ports::database::{DatabaseError, TokenStore},
    services::tokens::{NewToken, Tokens},
};
use secrecy::ExposeSecret as _;
use tempfile::TempDir;

use crate::support::server::TOKEN;

/// A database that answers late: between two readings of a round another process revokes a token, and a minute passes.
struct Slow {
    database: Database,
    clock: Arc<ManualClock>,
    revokes: Mutex<Option<TokenId>>,
    /// Fails to store when tokens were used.
    fails: AtomicBool,
}

#[async_trait]
impl TokenStore for Slow {
    async fn changed(&self, since: i64) -> Result<Vec<TokenRecord>, DatabaseError> {
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

    async fn revoke(&self, token: &TokenId, at_unix_ms: i64) -> Result<Vec<TokenId>, DatabaseError> {
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

    async fn forget(&self, before_unix_ms: i64) -> Result<Vec<TokenDigest>, DatabaseError> {
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
    let store = Arc::new(Slow {
        database,
        clock: Arc::clone(&clock),
        revokes: Mutex::default(),
        fails: AtomicBool::new(false),
    });
    let slow: Arc<dyn TokenStore> = store.clone();
    let tokens = Tokens::new(&TOKEN.to_owned().into(), Some(slow), clock);
    let (record, secret) = tokens.create(of_ann()).await.expect("a token");
    let is_accepted = || tokens.caller(secret.expose_secret().as_bytes()).is_some();
    *store.revokes.lock().expect("no panic") = Some(record.id);
    tokens.load().await;
    assert!(is_accepted(), "it was revoked after the tokens were read");
    tokens.load().await;
    assert!(!is_accepted());
}

#[tokio::test]
async fn a_revocation_by_a_server_whose_clock_is_behind_is_found_when_all_is_read() {
    let (_folder, database) = database().await;
    let server = |at| {
        let store: Arc<dyn TokenStore> = Arc::new(database.clone());
        Tokens::new(&TOKEN.to_owned().into(), Some(store), Arc::new(ManualClock::at(at)))
    };
    let (server, behind) = (server(1_800_000_060), server(1_800_000_000));
    let (record, secret) = server.create(of_ann()).await.expect("a token");
    let is_accepted = || server.caller(secret.expose_secret().as_bytes()).is_some();
    server.load().await;
    behind.revoke(record.id).await.expect("it is revoked");
    server.load().await;
    assert!(is_accepted(), "by its time it was read already");
    server.load_all().await;
    assert!(!is_accepted());
}

#[tokio::test]
async fn last_uses_are_written_in_one_order_by_all_servers() {
    let (_folder, database) = database().await;
    let clock = Arc::new(ManualClock::at(1_800_000_000));
    let slow = Slow { database, clock: Arc::clone(&clock), revokes: Mutex::default(), fails: AtomicBool::new(false) };
    let store: Arc<dyn TokenStore> = Arc::new(slow);
    let tokens = Tokens::new(&TOKEN.to_owned().into(), Some(store), clock);
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
        Tokens::new(&TOKEN.to_owned().into(), Some(store), Arc::new(ManualClock::at(at)))
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
async fn last_uses_that_were_not_stored_are_stored_by_the_next_round() {
    let (_folder, database) = database().await;
    let clock = Arc::new(ManualClock::at(1_800_000_000));
    let store = Arc::new(Slow {
        database: database.clone(),
        clock: Arc::clone(&clock),
        revokes: Mutex::default(),
        fails: AtomicBool::new(true),
    });
    let failing: Arc<dyn TokenStore> = store.clone();
    let tokens = Tokens::new(&TOKEN.to_owned().into(), Some(failing), clock);
    let (_, secret) = tokens.create(of_ann()).await.expect("a token");
    tokens.caller(secret.expose_secret().as_bytes()).expect("a caller");
    let stored = async || database.changed(0).await.expect("tokens")[0].used_unix_ms;
    tokens.load().await;
    assert_eq!(stored().await, None);
    store.fails.store(false, Ordering::Relaxed);
    tokens.load().await;
    assert_eq!(stored().await, Some(1_800_000_000_000));
}
