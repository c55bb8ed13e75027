//! Databases of other versions of the server, of each kind: what an older one holds is there after the migrations, also
//! out of a backup, and a newer one is refused.

use std::path::Path;

use mcp_sandbox_server::{
    adapters::database::Database,
    domain::{
        Principal,
        id::{ApprovalId, InstanceId, Language, RunId, TokenId},
        owner::ConversationKey,
    },
    ports::{
        database::{ApprovalStore, DbResult, DumpState, DumpStore, DumpedRow, Loading, TokenStore},
        history::{HistoryStore, KeyRecord, KeyStore, LineFilter, Notable, UsageFilter},
        sessions::{ServerProcess, SessionStore},
        sign_in::SignInStore,
    },
};
use serde_json::{Value, json};
use sqlx::{AnyPool, AssertSqlSafe, migrate::Migrator};
use tokio::sync::mpsc;

use crate::support::{postgres::Postgres, until};

/// A version whose tables are those of tokens and of the history alone.
const OLDER: i64 = 2;
/// A version that no migration of this server has.
const NEWER: i64 = 1_000_000;

macro_rules! on_both {
    ($($name:ident)+) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let folder = tempfile::tempdir().expect("a folder");
                super::$name(&format!("sqlite://{}/state.db", folder.path().display())).await;
            })+
        }

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let cluster = super::Postgres::start().await;
                super::$name(&cluster.url()).await;
            })+
        }
    };
}

on_both! {
    an_older_database_keeps_what_it_holds
    a_backup_of_an_older_database_is_loaded
    a_newer_database_is_refused
}

/// A token and a line of the history, as the older version had them.
struct Older {
    token: TokenId,
    run: RunId,
}

impl Older {
    fn new() -> Self {
        Self { token: TokenId::new(), run: RunId::new() }
    }

    fn rows(&self) -> [(&'static str, DumpedRow); 2] {
        let token = json!({
            "id": self.token.to_string(), "owner": "ann", "name": "laptop", "prefix": "mcps_012345",
            "digest": "ab".repeat(32), "may": json!({"scopes": ["run"]}).to_string(),
            "created_ms": 1, "changed_ms": 1,
        });
        let begun = self.run.unix_ms();
        let line = json!({
            "id": self.run.to_string(), "owner": "ann", "conversation": "c", "token": self.token.to_string(),
            "is_cell": 0, "language": "python", "image": "sha256:abc", "program_sha256": "00".repeat(32),
            "source": "print(1)", "instance": InstanceId::new().to_string(), "begun_ms": begun,
            "ended_ms": begun + 70, "ended": "exited", "exit_code": 0, "oom_killed": 0, "sentence": "It ended.",
            "wall_ms": 70, "stdout_bytes": 2, "stderr_bytes": 0, "files_changed": 0, "files": "[]",
        });
        [("tokens", token), ("history", line)].map(|(table, row)| (table, row.as_object().expect("a row").clone()))
    }

    /// This server finds both, and nothing else.
    async fn are_found(&self, database: &Database) {
        let state = database.state().await.expect("a state");
        assert_eq!((state.version, state.is_empty), (database.version(), false));
        let tokens = database.changed(0).await.expect("tokens");
        assert_eq!(tokens.iter().map(|token| token.id).collect::<Vec<_>>(), [self.token]);
        assert_eq!((tokens[0].owner.name(), tokens[0].name.as_str()), ("ann", "laptop"));
        let lines = database.page(&LineFilter::default(), 10).await.expect("lines");
        assert_eq!(lines.iter().map(|line| line.run).collect::<Vec<_>>(), [self.run]);
        assert_eq!((lines[0].token, lines[0].source.as_deref()), (Some(self.token), Some("print(1)")));
        let slowest = database.notable(Notable::Slowest, 0, 10).await.expect("lines");
        assert_eq!(slowest, lines);
    }
}

/// Executes statements as another program does.
async fn execute(url: &str, statements: &[String]) {
    let pool = AnyPool::connect(url).await.expect("another program");
    for statement in statements {
        sqlx::query(AssertSqlSafe(statement.clone())).execute(&pool).await.expect("executed");
    }
    pool.close().await;
}

async fn an_older_database_keeps_what_it_holds(url: &str) {
    // It installs the drivers and makes the file.
    let database = Database::connect(url).expect("an address");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/adapters/database/migrations");
    let migrations = Migrator::new(folder).await.expect("migrations");
    let pool = AnyPool::connect(url).await.expect("an older server");
    migrations.run_to(OLDER, &pool).await.expect("its tables");
    pool.close().await;
    let older = Older::new();
    let literal = |value: &Value| value.as_str().map_or_else(|| value.to_string(), |text| format!("'{text}'"));
    let insert = |(table, row): (&str, DumpedRow)| {
        let names: Vec<_> = row.keys().map(String::as_str).collect();
        let values: Vec<_> = row.values().map(literal).collect();
        format!("INSERT INTO {table} ({}) VALUES ({})", names.join(", "), values.join(", "))
    };
    execute(url, &older.rows().map(insert)).await;
    assert_eq!(database.state().await.expect("a state"), DumpState { version: OLDER, is_empty: false });

    database.prepare().await.expect("it is brought to this version");
    older.are_found(&database).await;
    database.close().await;
}

async fn a_backup_of_an_older_database_is_loaded(url: &str) {
    let database = Database::connect(url).expect("an address");
    // Into an empty database, then in place of the rows of one that has the tables of this version.
    for replace in [false, true] {
        let older = Older::new();
        let (sender, rows) = mpsc::channel(8);
        for (table, row) in older.rows() {
            sender.send(Loading::Row { table: table.to_owned(), row }).await.expect("room");
        }
        sender.send(Loading::End).await.expect("room");
        database.load(OLDER, replace, rows).await.expect("loaded");
        older.are_found(&database).await;
    }
    database.close().await;
}

async fn a_newer_database_is_refused(url: &str) {
    let first = Database::connect(url).expect("an address");
    first.prepare().await.expect("tables");
    first.close().await;
    let newer = format!(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
         SELECT {NEWER}, description, success, checksum, execution_time FROM _sqlx_migrations WHERE version = 1"
    );
    execute(url, &[newer]).await;
    let refused = Database::connect(url).expect("an address");
    let error = refused.prepare().await.expect_err("it is newer").to_string();
    assert!(error.contains(&format!("a newer version of the server (migration {NEWER})")), "{error}");
    assert!(refused.count().await.is_err(), "nothing is read or written");
    assert!(refused.state().await.is_err(), "nothing is restored into it");

    // The refused server stays connected, and another one that knows the version prepares the database.
    execute(url, &[format!("DELETE FROM _sqlx_migrations WHERE version = {NEWER}")]).await;
    let knows = Database::connect(url).expect("an address");
    until("another server is ready", async || knows.prepare().await.is_ok()).await;
    for database in [refused, knows] {
        database.close().await;
    }
}

/// It is given up after two seconds, while another server applies migrations or its own take long, and is begun again.
#[tokio::test(flavor = "multi_thread")]
async fn a_preparation_that_is_given_up_leaves_no_lock_on_postgres() {
    let cluster = Postgres::start().await;
    let url = cluster.url();
    let server = Database::connect(&url).expect("an address");
    server.prepare().await.expect("tables");
    server.close().await;
    let pool = AnyPool::connect(&url).await.expect("another program");
    let mut holds = pool.begin().await.expect("a transaction");
    let lock = "LOCK TABLE _sqlx_migrations IN ACCESS EXCLUSIVE MODE";
    sqlx::query(lock).execute(&mut *holds).await.expect("a lock");

    let [given_up, other] = [(); 2].map(|()| Database::connect(&url).expect("an address"));
    let preparing = {
        let given_up = given_up.clone();
        tokio::spawn(async move { given_up.prepare().await })
    };
    until("it has the lock of the migrations and waits for their table", async || {
        let waiting = "SELECT COUNT(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation' \
            AND pid IN (SELECT pid FROM pg_locks WHERE granted AND locktype = 'advisory')";
        let waiting: i64 = sqlx::query_scalar(waiting).fetch_one(&pool).await.expect("a number");
        waiting > 0
    })
    .await;
    preparing.abort();
    assert!(preparing.await.expect_err("it was given up").is_cancelled());
    holds.rollback().await.expect("rolled back");
    until("another server is ready", async || other.prepare().await.is_ok()).await;
    until("it is ready itself", async || given_up.prepare().await.is_ok()).await;
    pool.close().await;
    for database in [given_up, other] {
        database.close().await;
    }
}

/// As while several servers are replaced one by one: the first new one changes the tables.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_reads_on_when_a_newer_one_has_added_columns_on_postgres() {
    let cluster = Postgres::start().await;
    let url = cluster.url();
    let database = Database::connect(&url).expect("an address");
    database.prepare().await.expect("tables");
    let (who, process) = (Principal::default(), ServerProcess { instance: InstanceId::new(), started_ms: 1 });
    let place: ConversationKey = "c".parse().expect("a conversation");
    let (owner, run) = (who.clone(), RunId::new());
    let key = KeyRecord { owner, key: "k".to_owned(), digest: [1; 32], run, conversation: None, unix_ms: 1 };
    let read = async || -> DbResult<()> {
        database.changed(0).await?;
        TokenStore::revoke(&database, &TokenId::new(), 1).await?;
        database.line(&who, run).await?;
        database.page(&LineFilter::default(), 1).await?;
        database.usage(&UsageFilter::default(), 1).await?;
        database.keep(&key, 0).await?;
        database.keys(0, 1).await?;
        database.approval(ApprovalId::new(), None).await?;
        database.approvals(None, false, 1, 1).await?;
        database.left(process, 1).await?;
        database.take(&place, &Language::default(), process).await?;
        database.client("none").await.map(drop)
    };
    // Often enough that each connection has read everything.
    for _ in 0..20 {
        read().await.expect("read");
    }
    let tables =
        ["tokens", "history", "usage_days", "idempotency_keys", "approvals", "open_sessions", "sign_in_clients"];
    execute(&url, &tables.map(|table| format!("ALTER TABLE {table} ADD COLUMN added TEXT"))).await;
    for _ in 0..20 {
        read().await.expect("read on");
    }
    database.close().await;
}
