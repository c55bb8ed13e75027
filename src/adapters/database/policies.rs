//! Policies for the network access of programs, in the database.

use async_trait::async_trait;
use sqlx::Row as _;

use super::Database;
use crate::{
    domain::network::PolicyText,
    ports::database::{DatabaseError, PolicyStore},
};

#[async_trait]
impl PolicyStore for Database {
    async fn policies(&self) -> Result<Vec<(String, String)>, DatabaseError> {
        let statement = "SELECT name, definition FROM network_policies ORDER BY name";
        let rows = sqlx::query(statement).fetch_all(self.pool()?).await?;
        rows.iter().map(|row| Ok((row.try_get("name")?, row.try_get("definition")?))).collect()
    }

    async fn put_policy(&self, name: &str, policy: &PolicyText, at_unix_ms: i64) -> Result<(), DatabaseError> {
        let statement = "INSERT INTO network_policies (name, definition, changed_ms) VALUES ($1, $2, $3) \
            ON CONFLICT (name) DO UPDATE SET definition = excluded.definition, changed_ms = excluded.changed_ms";
        let definition = serde_json::to_string(policy)?;
        self.execute(sqlx::query(statement).bind(name).bind(definition).bind(at_unix_ms)).await.map(drop)
    }

    async fn remove_policy(&self, name: &str) -> Result<bool, DatabaseError> {
        let statement = "DELETE FROM network_policies WHERE name = $1";
        Ok(self.execute(sqlx::query(statement).bind(name)).await? > 0)
    }
}
