//! The database: SQLite in a file, or PostgreSQL where several servers share one. One set of statements serves both,
//! in the part of SQL that they share: texts, 64 bit integers, placeholders `$1`. Digests are hexadecimal texts,
//! structures are JSON texts, moments are unix milliseconds. A statement that reads all columns does not stay prepared:
//! PostgreSQL would refuse it once a newer server has added one.
//!
//! ```text
//! connect ── nothing is awaited: the database may come later
//! prepare ── one task: applies the migrations, and tries again until it could
//! ```

#![expect(clippy::doc_markdown, reason = "SQLite and PostgreSQL are names")]

mod definitions;
mod dump;
mod history;
mod keys;
mod peers;
mod sessions;
mod sign_in;
mod tokens;

use std::{
    fmt::Display,
    fs::{DirBuilder, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use percent_encoding::percent_decode_str;
use sqlx::{
    Any, AnyPool, Executor, Row as _,
    any::{AnyArguments, AnyConnectOptions, AnyPoolOptions, AnyRow},
    migrate::{MigrateError, Migrator},
    query::Query,
};
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    domain::{TokenDigest, text::unhex},
    ports::database::{DatabaseError, DbResult},
};

static MIGRATIONS: Migrator = sqlx::migrate!("src/adapters/database/migrations");

/// How long a caller waits for a connection.
const ACQUIRE_MAX: Duration = Duration::from_secs(5);
const CONNECTIONS_MAX: u32 = 8;
/// How long the end waits for connections that are in use.
const CLOSE_MAX: Duration = Duration::from_secs(5);
/// How long SQLite waits for another writer, and what each connection keeps of the file in memory (256 KiB): with the
/// usual 2 MiB the server grew for an hour, and the kernel keeps the file's pages as well.
const SQLITE: &str = "PRAGMA busy_timeout = 5000; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; \
                      PRAGMA cache_size = -256";
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Why a database cannot be named like this, or its file cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("it is neither sqlite://<path> nor postgres://<user>@<host>/<database>")]
    Url(#[source] sqlx::Error),
    #[error("{0}")]
    File(String, #[source] io::Error),
}

/// Connections to the database. Cheap to clone.
#[derive(Clone)]
pub struct Database {
    pool: AnyPool,
    /// For a connection beside the pool.
    url: Arc<str>,
    /// Whether the migrations were applied.
    ready: Arc<watch::Sender<bool>>,
}

impl Database {
    /// Names the database at `url`; makes the file of an SQLite database, with mode 0600, if it is missing.
    ///
    /// # Errors
    /// When the address is wrong or the file cannot be made. A server that is away is no error here.
    pub fn connect(url: &str) -> Result<Self, OpenError> {
        sqlx::any::install_default_drivers();
        let options = AnyConnectOptions::from_str(url).map_err(OpenError::Url)?;
        let is_sqlite = url.starts_with("sqlite:");
        if is_sqlite {
            // Decoded as the driver does: an address has neither spaces nor letters of other alphabets.
            let path = percent_decode_str(options.database_url.path()).decode_utf8_lossy();
            make_file(Path::new(&*path)).map_err(|error| OpenError::File(path.into_owned(), error))?;
        }
        let pool = AnyPoolOptions::new()
            .max_connections(CONNECTIONS_MAX)
            .acquire_timeout(ACQUIRE_MAX)
            .after_connect(move |connection, _| {
                Box::pin(async move {
                    if is_sqlite {
                        connection.execute(SQLITE).await?;
                    }
                    Ok(())
                })
            })
            .connect_lazy_with(options);
        Ok(Self { pool, url: url.into(), ready: Arc::new(watch::Sender::new(false)) })
    }

    /// One that is never prepared, so each call fails at once: for a process that stores nothing.
    ///
    /// # Errors
    /// None that is known.
    pub fn unprepared() -> Result<Self, OpenError> {
        sqlx::any::install_default_drivers();
        let options = AnyConnectOptions::from_str("sqlite::memory:").map_err(OpenError::Url)?;
        // Without these limits the pool starts no task, so it can be made outside of a runtime.
        let pool = AnyPoolOptions::new().idle_timeout(None).max_lifetime(None).connect_lazy_with(options);
        Ok(Self { pool, url: Arc::from(""), ready: Arc::new(watch::Sender::new(false)) })
    }

    /// Applies the migrations that are missing.
    ///
    /// # Errors
    /// When the database is away, or is of a newer server.
    pub async fn prepare(&self) -> DbResult<()> {
        if self.pool().is_ok() {
            return Ok(());
        }
        self.migrate(None).await?;
        self.ready.send_replace(true);
        Ok(())
    }

    /// Applies the migrations that are missing, up to a version.
    async fn migrate(&self, target: Option<i64>) -> DbResult<()> {
        let mut connection = self.pool.acquire().await?;
        // Where they fail, or the caller gives them up, it may still hold PostgreSQL's lock of the migrations, for
        // which every other server and connection waits.
        connection.close_on_drop();
        MIGRATIONS.run_direct(target, &mut *connection, false).await.map_err(|error| match error {
            MigrateError::VersionMissing(version) => DatabaseError(format!(
                "it is of a newer version of the server (migration {version}): use that version, or another database"
            )),
            other => DatabaseError(other.to_string()),
        })
    }

    /// As [`Self::prepare`]; tries again until it could, or until `stop`.
    pub async fn prepare_with_retries(&self, stop: CancellationToken) {
        let mut is_told = false;
        loop {
            match stop.run_until_cancelled(self.prepare()).await {
                None => return,
                Some(Ok(())) => break,
                Some(Err(error)) if !is_told => {
                    warn!(%error, "the database is unavailable: runs continue and are not recorded");
                    is_told = true;
                }
                Some(Err(_)) => {}
            }
            tokio::select! {
                () = tokio::time::sleep(TRY_AGAIN) => {}
                () = stop.cancelled() => return,
            }
        }
        if is_told {
            info!("the database can be used again");
        }
    }

    /// Waits until the migrations were applied.
    pub async fn ready(&self) {
        // The sender lives as long as this.
        let _ = self.ready.subscribe().wait_for(|is_ready| *is_ready).await;
    }

    /// The connections, once the tables are there.
    fn pool(&self) -> DbResult<&AnyPool> {
        let is_ready = *self.ready.borrow();
        if is_ready { Ok(&self.pool) } else { Err(DatabaseError("it is not prepared yet".to_owned())) }
    }

    /// Executes one statement; how many rows it changed.
    async fn execute(&self, statement: Query<'_, Any, AnyArguments>) -> DbResult<u64> {
        Ok(statement.execute(self.pool()?).await?.rows_affected())
    }

    /// As [`Self::execute`], but a caller that gives it up has changed nothing: PostgreSQL executes a statement to its
    /// end also without its caller, and what it did is rolled back then.
    async fn execute_for_client(&self, statement: Query<'_, Any, AnyArguments>) -> DbResult<u64> {
        let mut transaction = self.pool()?.begin().await?;
        let changed = statement.execute(&mut *transaction).await?.rows_affected();
        transaction.commit().await?;
        Ok(changed)
    }

    /// Ends the connections. One that was lost silently is in use until the kernel notices it.
    pub async fn close(&self) {
        if timeout(CLOSE_MAX, self.pool.close()).await.is_err() {
            warn!("connections to the database were in use at the end");
        }
    }
}

impl From<sqlx::Error> for DatabaseError {
    fn from(error: sqlx::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<serde_json::Error> for DatabaseError {
    fn from(error: serde_json::Error) -> Self {
        Self(error.to_string())
    }
}

/// A column that holds a digest in hexadecimal digits.
fn digest(row: &AnyRow, column: &str) -> DbResult<TokenDigest> {
    let text: String = row.try_get(column)?;
    unhex(&text).and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| DatabaseError("a digest is no digest".into()))
}

/// A column that holds the text of something.
fn parsed<T: FromStr<Err: Display>>(row: &AnyRow, column: &str) -> DbResult<T> {
    parsed_if_any(row, column)?.ok_or_else(|| DatabaseError(format!("{column}: it is NULL")))
}

/// As [`parsed`], for a column that may be NULL.
fn parsed_if_any<T: FromStr<Err: Display>>(row: &AnyRow, column: &str) -> DbResult<Option<T>> {
    let text: Option<String> = row.try_get(column)?;
    text.map(|text| text.parse()).transpose().map_err(|error| DatabaseError(format!("{column}: {error}")))
}

/// A column that holds a number; `None` where it is NULL or does not fit.
fn number<N: TryFrom<i64>>(row: &AnyRow, column: &str) -> DbResult<Option<N>> {
    Ok(row.try_get::<Option<i64>, _>(column)?.and_then(|number| number.try_into().ok()))
}

fn make_file(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().mode(0o700).recursive(true).create(folder)?;
    }
    // SQLite gives its other files the mode of this one.
    OpenOptions::new().append(true).create(true).mode(0o600).open(path).map(drop)
}

#[cfg(test)]
impl Database {
    /// One with its tables, in a folder of its own, which is gone when dropped.
    pub(crate) async fn in_new_folder() -> (tempfile::TempDir, Self) {
        let folder = tempfile::tempdir().expect("a folder");
        let database = Self::connect(&format!("sqlite://{}/x.db", folder.path().display())).expect("an address");
        database.prepare().await.expect("tables");
        (folder, database)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_path_of_the_file_may_have_any_characters() {
        let folder = tempfile::tempdir().expect("a folder");
        let named = [("a b", "a b"), ("c d", "c%20d"), ("\u{e4}", "\u{e4}"), ("50%?#", "50%25%3F%23")];
        for (name, written) in named {
            let url = format!("sqlite://{}/{written}/x.db", folder.path().display());
            let database = Database::connect(&url).expect("an address");
            database.prepare().await.expect("tables");
            assert!(folder.path().join(name).join("x.db").exists(), "{name}");
            database.close().await;
        }
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), named.len(), "no other folder");
    }

    #[tokio::test]
    async fn the_end_does_not_wait_for_a_connection_that_is_not_given_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let database = Database::connect(&format!("sqlite://{}/x.db", folder.path().display())).expect("an address");
        let held = database.pool.acquire().await.expect("a connection");
        tokio::time::pause();
        timeout(CLOSE_MAX * 2, database.close()).await.expect("it ends");
        drop(held);
    }
}
