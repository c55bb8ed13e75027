//! The database: SQLite in a file, or PostgreSQL where several servers share one. One set of statements serves both,
//! in the part of SQL that they share: texts, 64 bit integers, placeholders `$1`. Digests are hexadecimal texts,
//! structures are JSON texts, moments are unix milliseconds.
//!
//! ```text
//! connect ── nothing is awaited: the database may come later
//! prepare ── one task: applies the migrations, and tries again until it could
//! ```

#![expect(clippy::doc_markdown, reason = "SQLite and PostgreSQL are names")]

mod dump;
mod history;
mod keys;
mod peers;
mod policies;
mod sessions;
mod sign_in;
mod tokens;
mod tools;

use std::{
    fs::{DirBuilder, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use sqlx::{
    Any, AnyPool, Executor,
    any::{AnyArguments, AnyConnectOptions, AnyPoolOptions},
    migrate::Migrator,
    query::Query,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::ports::database::DatabaseError;

static MIGRATIONS: Migrator = sqlx::migrate!("src/adapters/database/migrations");

/// How long a caller waits for a connection.
const ACQUIRE_MAX: Duration = Duration::from_secs(5);
const CONNECTIONS_MAX: u32 = 8;
/// How long SQLite waits for another writer, and what each connection keeps of the file in memory (256 KiB): with the
/// usual 2 MiB the server grew for an hour, and the kernel keeps the file's pages as well.
const SQLITE: &str = "PRAGMA busy_timeout = 5000; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; \
                      PRAGMA cache_size = -256";
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Why a database cannot be named like this, or its file cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("it is neither sqlite://<path> nor postgres://<user>@<host>/<database>: {0}")]
    Url(#[source] sqlx::Error),
    #[error("{0}: {1}")]
    File(String, #[source] io::Error),
}

/// Connections to the database. Cheap to clone.
#[derive(Clone)]
pub struct Database {
    pool: AnyPool,
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
        if let Some(path) = is_sqlite.then(|| options.database_url.path()) {
            make_file(Path::new(path)).map_err(|error| OpenError::File(path.to_owned(), error))?;
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
        Ok(Self { pool, ready: Arc::new(watch::Sender::new(false)) })
    }

    /// Applies the migrations that are missing.
    ///
    /// # Errors
    /// When the database is away, or is of a newer server.
    pub async fn prepare(&self) -> Result<(), DatabaseError> {
        if self.pool().is_ok() {
            return Ok(());
        }
        MIGRATIONS.run(&self.pool).await.map_err(|error| DatabaseError(error.to_string()))?;
        self.ready.send_replace(true);
        Ok(())
    }

    /// As [`Self::prepare`]; tries again until it could, or until `stop`.
    pub async fn prepare_at_last(&self, stop: CancellationToken) {
        let mut is_told = false;
        while let Err(error) = self.prepare().await {
            if !is_told {
                warn!(%error, "the database is unavailable: runs continue and are not recorded");
                is_told = true;
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
    fn pool(&self) -> Result<&AnyPool, DatabaseError> {
        let is_ready = *self.ready.borrow();
        if is_ready { Ok(&self.pool) } else { Err(DatabaseError("it is not prepared yet".to_owned())) }
    }

    /// Executes one statement; how many rows it changed.
    async fn execute(&self, statement: Query<'_, Any, AnyArguments>) -> Result<u64, DatabaseError> {
        Ok(statement.execute(self.pool()?).await?.rows_affected())
    }

    pub async fn close(&self) {
        self.pool.close().await;
    }
}

impl std::fmt::Debug for Database {
    /// The address may have a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Database(…)")
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

fn make_file(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().mode(0o700).recursive(true).create(folder)?;
    }
    // SQLite gives its other files the mode of this one.
    OpenOptions::new().append(true).create(true).mode(0o600).open(path).map(drop)
}
