//! Idempotency keys in the database.

use async_trait::async_trait;
use sqlx::{Row, any::AnyRow};

use super::{Database, DatabaseError, DbResult, digest, parsed, parsed_if_any};
use crate::{
    domain::text::{hex, whole},
    ports::history::{KeyRecord, KeyStore},
};

/// Attempts to keep a key while other servers take and release it.
const TRIES: usize = 2;

#[async_trait]
impl KeyStore for Database {
    async fn keys(&self, since_unix_ms: i64, limit: usize) -> DbResult<Vec<KeyRecord>> {
        let statement = "SELECT * FROM idempotency_keys WHERE created_ms >= $1 ORDER BY created_ms DESC LIMIT $2";
        let query = sqlx::query(statement).persistent(false).bind(since_unix_ms).bind(whole(limit));
        let rows = query.fetch_all(self.pool()?).await?;
        rows.iter().map(read).collect()
    }

    async fn keep(&self, key: &KeyRecord, since_unix_ms: i64) -> DbResult<Option<KeyRecord>> {
        let statement = "INSERT INTO idempotency_keys (owner, name, digest, run, conversation, created_ms) \
            VALUES ($1, $2, $3, $4, $5, $6) \
            ON CONFLICT (owner, name) DO UPDATE SET digest = excluded.digest, run = excluded.run, \
             conversation = excluded.conversation, created_ms = excluded.created_ms \
            WHERE idempotency_keys.created_ms < $7";
        for _ in 0..TRIES {
            let query = sqlx::query(statement)
                .bind(key.owner.name())
                .bind(&key.key)
                .bind(hex(&key.digest))
                .bind(key.run.to_string())
                .bind(key.conversation.as_ref().map(ToString::to_string))
                .bind(key.unix_ms)
                .bind(since_unix_ms);
            if self.execute(query).await? > 0 {
                return Ok(None);
            }
            let statement = "SELECT * FROM idempotency_keys WHERE owner = $1 AND name = $2";
            let query = sqlx::query(statement).persistent(false).bind(key.owner.name()).bind(&key.key);
            if let Some(row) = query.fetch_optional(self.pool()?).await? {
                return read(&row).map(Some);
            }
        }
        Err(DatabaseError("a key was taken and released again and again".to_owned()))
    }

    async fn release(&self, key: &KeyRecord) -> DbResult<()> {
        let statement = "DELETE FROM idempotency_keys WHERE owner = $1 AND name = $2 AND run = $3";
        let query = sqlx::query(statement).bind(key.owner.name()).bind(&key.key).bind(key.run.to_string());
        self.execute(query).await.map(drop)
    }

    async fn forget(&self, before_unix_ms: i64, limit: u64) -> DbResult<u64> {
        let statement = "DELETE FROM idempotency_keys WHERE (owner, name) IN \
            (SELECT owner, name FROM idempotency_keys WHERE created_ms < $1 ORDER BY created_ms LIMIT $2)";
        self.execute(sqlx::query(statement).bind(before_unix_ms).bind(whole(limit))).await
    }
}

fn read(row: &AnyRow) -> DbResult<KeyRecord> {
    Ok(KeyRecord {
        owner: parsed(row, "owner")?,
        key: row.try_get("name")?,
        digest: digest(row, "digest")?,
        run: parsed(row, "run")?,
        conversation: parsed_if_any(row, "conversation")?,
        unix_ms: row.try_get("created_ms")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::RunId;

    #[tokio::test]
    async fn a_key_that_is_released_between_the_two_statements_is_kept() {
        let (_folder, database) = Database::in_new_folder().await;
        // Another server releases the key once it was found.
        let trigger = "CREATE TRIGGER released BEFORE INSERT ON idempotency_keys \
            WHEN EXISTS (SELECT 1 FROM idempotency_keys WHERE owner = NEW.owner AND name = NEW.name) \
            BEGIN DELETE FROM idempotency_keys WHERE owner = NEW.owner AND name = NEW.name; SELECT RAISE(IGNORE); END";
        database.execute(sqlx::query(trigger)).await.expect("a trigger");
        let at = |unix_ms| KeyRecord {
            owner: "ann".parse().expect("an owner"),
            key: "k".to_owned(),
            digest: [1; 32],
            run: RunId::new(),
            conversation: None,
            unix_ms,
        };
        let (first, second) = (at(1000), at(2000));
        assert_eq!(database.keep(&first, 0).await.expect("stored"), None);
        assert_eq!(database.keep(&second, 0).await.expect("stored"), None);
        assert_eq!(database.keys(0, 10).await.expect("keys"), [second]);
        database.close().await;
    }
}
