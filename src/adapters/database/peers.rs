//! Servers that reach each other, and what each has, in the database.

use std::fmt::Write as _;

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, Row as _};

use super::{Database, tokens::parsed};
use crate::{
    domain::{id::InstanceId, owner::ConversationKey},
    ports::{
        database::DatabaseError,
        peers::{Peer, PeerStore},
    },
};

#[async_trait]
impl PeerStore for Database {
    async fn announce(&self, me: &Peer, beat: i64) -> Result<(), DatabaseError> {
        let statement = "INSERT INTO peers (instance, url, beat) VALUES ($1, $2, $3) \
            ON CONFLICT (instance) DO UPDATE SET url = excluded.url, beat = excluded.beat";
        let query = sqlx::query(statement).bind(me.instance.to_string()).bind(&me.url).bind(beat);
        query.execute(self.pool()?).await?;
        Ok(())
    }

    async fn peers(&self) -> Result<Vec<(Peer, i64)>, DatabaseError> {
        let statement = "SELECT instance, url, beat FROM peers ORDER BY instance";
        let rows = sqlx::query(statement).fetch_all(self.pool()?).await?;
        let read = rows.iter().map(|row| {
            Ok((Peer { instance: parsed(row, "instance")?, url: row.try_get("url")? }, row.try_get("beat")?))
        });
        read.collect()
    }

    async fn take(
        &self,
        conversation: &ConversationKey,
        by: InstanceId,
        stamp: i64,
        others: &[InstanceId],
    ) -> Result<InstanceId, DatabaseError> {
        // An id of no server makes the list of none valid SQL.
        let mut alive = "''".to_owned();
        for place in 5..5 + others.len() {
            let _ = write!(alive, ", ${place}");
        }
        let statement = format!(
            "INSERT INTO conversation_places (owner, conversation, instance, stamp) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (owner, conversation) DO UPDATE SET instance = excluded.instance, stamp = excluded.stamp \
             WHERE conversation_places.instance NOT IN ({alive})"
        );
        let (owner, id) = (conversation.owner.name(), conversation.id.as_str());
        let query = sqlx::query(AssertSqlSafe(statement)).bind(owner).bind(id).bind(by.to_string()).bind(stamp);
        let query = others.iter().fold(query, |query, other| query.bind(other.to_string()));
        if query.execute(self.pool()?).await?.rows_affected() > 0 {
            return Ok(by);
        }
        let statement = "SELECT instance FROM conversation_places WHERE owner = $1 AND conversation = $2";
        let found = sqlx::query(statement).bind(owner).bind(id).fetch_one(self.pool()?).await?;
        parsed(&found, "instance")
    }

    async fn give_back(&self, conversation: &ConversationKey, by: InstanceId, stamp: i64) -> Result<(), DatabaseError> {
        let statement = "DELETE FROM conversation_places \
            WHERE owner = $1 AND conversation = $2 AND instance = $3 AND stamp = $4";
        let query = sqlx::query(statement).bind(conversation.owner.name()).bind(conversation.id.as_str());
        query.bind(by.to_string()).bind(stamp).execute(self.pool()?).await?;
        Ok(())
    }

    async fn leave(&self, instance: InstanceId) -> Result<(), DatabaseError> {
        for table in ["conversation_places", "peers"] {
            let statement = AssertSqlSafe(format!("DELETE FROM {table} WHERE instance = $1"));
            sqlx::query(statement).bind(instance.to_string()).execute(self.pool()?).await?;
        }
        Ok(())
    }
}
