//! Idempotency keys in the database.

use async_trait::async_trait;
use sqlx::{Row, any::AnyRow};

use super::{
    Database,
    tokens::{digest, parsed, parsed_if_any},
};
use crate::{
    domain::text::hex,
    ports::{
        database::DatabaseError,
        history::{KeyRecord, KeyStore},
    },
};

#[async_trait]
impl KeyStore for Database {
    async fn keys(&self, since_unix_ms: i64, limit: usize) -> Result<Vec<KeyRecord>, DatabaseError> {
        let statement = "SELECT * FROM idempotency_keys WHERE created_ms >= $1 ORDER BY created_ms DESC LIMIT $2";
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = sqlx::query(statement).bind(since_unix_ms).bind(limit).fetch_all(self.pool()?).await?;
        rows.iter().map(read).collect()
    }

    async fn keep(&self, key: &KeyRecord, since_unix_ms: i64) -> Result<Option<KeyRecord>, DatabaseError> {
        let statement = "INSERT INTO idempotency_keys (owner, name, digest, run, conversation, created_ms) \
            VALUES ($1, $2, $3, $4, $5, $6) \
            ON CONFLICT (owner, name) DO UPDATE SET digest = excluded.digest, run = excluded.run, \
             conversation = excluded.conversation, created_ms = excluded.created_ms \
            WHERE idempotency_keys.created_ms < $7";
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
        let row = sqlx::query(statement).bind(key.owner.name()).bind(&key.key).fetch_one(self.pool()?).await?;
        read(&row).map(Some)
    }

    async fn release(&self, key: &KeyRecord) -> Result<(), DatabaseError> {
        let statement = "DELETE FROM idempotency_keys WHERE owner = $1 AND name = $2 AND run = $3";
        let query = sqlx::query(statement).bind(key.owner.name()).bind(&key.key).bind(key.run.to_string());
        self.execute(query).await.map(drop)
    }

    async fn forget(&self, before_unix_ms: i64, limit: u64) -> Result<u64, DatabaseError> {
        let statement = "DELETE FROM idempotency_keys WHERE (owner, name) IN \
            (SELECT owner, name FROM idempotency_keys WHERE created_ms < $1 ORDER BY created_ms LIMIT $2)";
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.execute(sqlx::query(statement).bind(before_unix_ms).bind(limit)).await
    }
}

fn read(row: &AnyRow) -> Result<KeyRecord, DatabaseError> {
    Ok(KeyRecord {
        owner: parsed(row, "owner")?,
        key: row.try_get("name")?,
        digest: digest(row, "digest")?,
        run: parsed(row, "run")?,
        conversation: parsed_if_any(row, "conversation")?,
        unix_ms: row.try_get("created_ms")?,
    })
}
