//! Every row of every table, out and in. Rows are read and written by the names of their columns, so that a backup of
//! one kind of database can be restored into the other.

use async_trait::async_trait;
use futures_util::TryStreamExt as _;
use serde_json::Value;
use sqlx::{Any, AssertSqlSafe, Column as _, Row as _, Transaction, any::AnyRow};
use tokio::sync::mpsc;

use super::{Database, DatabaseError, DbResult, MIGRATIONS};
use crate::ports::database::{DumpState, DumpStore, DumpedRow, Loading};

/// Tables about the servers that run now, which a backup leaves out.
const LIVE_TABLES: [&str; 4] = ["servers", "peers", "conversation_places", "open_sessions"];
const TABLES: [&str; 11] = [
    "tokens",
    "history",
    "usage_days",
    "idempotency_keys",
    "sign_in_clients",
    "sign_in_codes",
    "sign_in_refresh",
    "sign_in_access",
    "network_policies",
    "tool_servers",
    "approvals",
];

#[async_trait]
impl DumpStore for Database {
    fn tables(&self) -> &'static [&'static str] {
        &TABLES
    }

    fn version(&self) -> i64 {
        MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or_default()
    }

    async fn state(&self) -> DbResult<DumpState> {
        self.migrate(Some(0)).await?;
        let row = sqlx::query("SELECT MAX(version) AS version FROM _sqlx_migrations").fetch_one(&self.pool).await?;
        let version = row.try_get::<Option<i64>, _>("version")?.unwrap_or_default();
        let present = if version > 0 { self.present(&TABLES, version).await? } else { Vec::new() };
        Ok(DumpState { version, is_empty: !present.iter().any(|(_, has_rows)| *has_rows) })
    }

    async fn dump(&self, rows: mpsc::Sender<(&'static str, DumpedRow)>) -> DbResult<()> {
        let mut transaction = self.pool()?.begin().await?;
        // SQLite takes its snapshot at the first read.
        if transaction.backend_name() == "PostgreSQL" {
            let statement = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY";
            sqlx::query(statement).execute(&mut *transaction).await?;
        }
        for table in TABLES {
            let statement = AssertSqlSafe(format!("SELECT * FROM {table}"));
            let mut found = sqlx::query(statement).fetch(&mut *transaction);
            while let Some(row) = found.try_next().await? {
                if rows.send((table, read(&row)?)).await.is_err() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    async fn load(&self, version: i64, replace: bool, mut rows: mpsc::Receiver<Loading>) -> DbResult<()> {
        self.migrate(Some(version)).await?;
        let replaced = if replace { [&TABLES[..], &LIVE_TABLES].concat() } else { Vec::new() };
        let present = self.present(&replaced, version).await?;
        let mut transaction = self.pool.begin().await?;
        for (table, _) in present {
            sqlx::query(AssertSqlSafe(format!("DELETE FROM {table}"))).execute(&mut *transaction).await?;
        }
        loop {
            match rows.recv().await {
                Some(Loading::Row { table, row }) => insert(&mut transaction, &table, row).await?,
                Some(Loading::End) => break,
                None => return Err(DatabaseError("the rows ended early".to_owned())),
            }
        }
        transaction.commit().await?;
        self.prepare().await
    }
}

impl Database {
    /// Those of these tables that are there, and whether each has rows.
    async fn present(&self, tables: &[&'static str], version: i64) -> DbResult<Vec<(&'static str, bool)>> {
        let mut present = Vec::new();
        for &table in tables {
            let any = sqlx::query(AssertSqlSafe(format!("SELECT 1 FROM {table} LIMIT 1")));
            match any.fetch_optional(&self.pool).await {
                Ok(row) => present.push((table, row.is_some())),
                // A table of a later version may not be there yet.
                Err(_) if version < self.version() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(present)
    }
}

fn read(row: &AnyRow) -> DbResult<DumpedRow> {
    let mut values = DumpedRow::new();
    for column in row.columns() {
        let at = column.ordinal();
        let number = row.try_get::<Option<i64>, _>(at).map(|number| number.map(Value::from));
        let value = number.or_else(|_| row.try_get::<Option<String>, _>(at).map(|text| text.map(Value::from)))?;
        values.extend(value.map(|value| (column.name().to_owned(), value)));
    }
    Ok(values)
}

/// The names were checked: they are made of letters, digits and `_`.
async fn insert(transaction: &mut Transaction<'_, Any>, table: &str, row: DumpedRow) -> DbResult<()> {
    let names: Vec<_> = row.keys().map(String::as_str).collect();
    let placeholders: Vec<_> = (1..=names.len()).map(|number| format!("${number}")).collect();
    let statement = format!("INSERT INTO {table} ({}) VALUES ({})", names.join(", "), placeholders.join(", "));
    let mut query = sqlx::query(AssertSqlSafe(statement));
    for (_, value) in row {
        query = match value {
            Value::String(text) => query.bind(text),
            other => query.bind(other.as_i64()),
        };
    }
    query.execute(&mut **transaction).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_backup_has_every_table() {
        let (_folder, database) = Database::in_new_folder().await;
        let statement = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'";
        let rows = sqlx::query(statement).fetch_all(&database.pool).await.expect("tables");
        let mut found: Vec<String> = rows.iter().map(|row| row.try_get("name").expect("a name")).collect();
        found.retain(|name| !LIVE_TABLES.contains(&name.as_str()) && name != "_sqlx_migrations");
        found.sort();
        let mut expected = TABLES;
        expected.sort_unstable();
        assert_eq!(found, expected);
    }

    #[tokio::test]
    async fn the_rows_of_a_table_that_cannot_be_read_are_not_left_beside_those_of_a_backup() {
        let (_folder, database) = Database::in_new_folder().await;
        database.execute(sqlx::query("DROP TABLE approvals")).await.expect("dropped");
        let (sender, rows) = mpsc::channel(1);
        sender.send(Loading::End).await.expect("sent");
        let error = database.load(database.version(), true, rows).await.expect_err("it cannot be read");
        assert!(error.0.contains("approvals"), "{error}");
        database.close().await;
    }
}
