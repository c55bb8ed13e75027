//! Servers that reach each other, and what each has, in the database. Short texts between them go by NOTIFY of
//! PostgreSQL: who listens has a connection of its own, beside those of the pool.

use std::fmt::Write as _;

use async_trait::async_trait;
use futures_util::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use sqlx::{AssertSqlSafe, Row as _, postgres::PgListener};

use super::{Database, DatabaseError, DbResult, parsed};
use crate::{
    domain::{ConversationKey, InstanceId},
    ports::peers::{Notices, Peer, PeerStore},
};

/// Attempts to take a conversation while other servers take it and give it back.
const TRIES: usize = 2;
const CHANNEL: &str = "sandbox_notices";

#[async_trait]
impl PeerStore for Database {
    async fn announce(&self, me: &Peer, beat: i64) -> DbResult<()> {
        let statement = "INSERT INTO peers (instance, url, beat) VALUES ($1, $2, $3) \
            ON CONFLICT (instance) DO UPDATE SET url = excluded.url, beat = excluded.beat";
        self.execute(sqlx::query(statement).bind(me.instance.to_string()).bind(&me.url).bind(beat)).await.map(drop)
    }

    async fn peers(&self) -> DbResult<Vec<(Peer, i64)>> {
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
        dead: &[(InstanceId, i64)],
    ) -> DbResult<InstanceId> {
        // A server that has changed its beat since it was read is not dead, whatever this one thinks.
        let mut is_dead = String::new();
        for number in (5..).step_by(2).take(dead.len()) {
            let _ = write!(is_dead, " AND NOT (peers.instance = ${number} AND peers.beat = ${})", number + 1);
        }
        let statement = format!(
            "INSERT INTO conversation_places (owner, conversation, instance, stamp) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (owner, conversation) DO UPDATE SET instance = excluded.instance, stamp = excluded.stamp \
             WHERE (conversation_places.instance = excluded.instance AND conversation_places.stamp < excluded.stamp) \
             OR NOT EXISTS (SELECT 1 FROM peers WHERE peers.instance = conversation_places.instance{is_dead})"
        );
        let (owner, id) = (conversation.owner.name(), conversation.id.as_str());
        for _ in 0..TRIES {
            let query = sqlx::query(AssertSqlSafe(statement.clone())).bind(owner).bind(id);
            let query = query.bind(by.to_string()).bind(stamp);
            let query = dead.iter().fold(query, |query, (instance, beat)| query.bind(instance.to_string()).bind(*beat));
            if self.execute(query).await? > 0 {
                return Ok(by);
            }
            let statement = "SELECT instance FROM conversation_places WHERE owner = $1 AND conversation = $2";
            let query = sqlx::query(statement).bind(owner).bind(id);
            if let Some(row) = query.fetch_optional(self.pool()?).await? {
                return parsed(&row, "instance");
            }
        }
        Err(DatabaseError("a conversation was taken and given back again and again".to_owned()))
    }

    async fn give_back(&self, conversation: &ConversationKey, by: InstanceId, stamp: i64) -> DbResult<()> {
        let statement = "DELETE FROM conversation_places \
            WHERE owner = $1 AND conversation = $2 AND instance = $3 AND stamp = $4";
        let query = sqlx::query(statement).bind(conversation.owner.name()).bind(conversation.id.as_str());
        self.execute(query.bind(by.to_string()).bind(stamp)).await.map(drop)
    }

    async fn leave(&self, instance: InstanceId) -> DbResult<()> {
        for table in ["conversation_places", "peers"] {
            let statement = AssertSqlSafe(format!("DELETE FROM {table} WHERE instance = $1"));
            self.execute(sqlx::query(statement).bind(instance.to_string())).await?;
        }
        Ok(())
    }

    async fn forget(&self, instance: InstanceId, beat: i64) -> DbResult<()> {
        // A server that comes back waits for the end of this with its first beat, and takes what it has only then.
        let mut transaction = self.pool()?.begin().await?;
        let statement = "DELETE FROM peers WHERE instance = $1 AND beat = $2";
        let query = sqlx::query(statement).bind(instance.to_string()).bind(beat);
        if query.execute(&mut *transaction).await?.rows_affected() > 0 {
            let statement = "DELETE FROM conversation_places WHERE instance = $1";
            sqlx::query(statement).bind(instance.to_string()).execute(&mut *transaction).await?;
        }
        Ok(transaction.commit().await?)
    }
}

#[async_trait]
impl Notices for Database {
    async fn send(&self, text: &str) -> DbResult<()> {
        // As a text, since the driver for both databases knows no value of PostgreSQL's type void.
        let statement = sqlx::query("SELECT CAST(pg_notify($1, $2) AS TEXT)").bind(CHANNEL).bind(text);
        self.execute(statement).await.map(drop)
    }

    async fn listen(&self) -> DbResult<BoxStream<'static, String>> {
        let mut listener = PgListener::connect(&self.url).await?;
        listener.eager_reconnect(false);
        listener.listen(CHANNEL).await?;
        let texts = stream::unfold(listener, |mut listener| async move {
            let notification = listener.try_recv().await.ok()??;
            Some((notification.payload().to_owned(), listener))
        });
        Ok(texts.boxed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Principal;

    #[tokio::test]
    async fn a_conversation_is_taken_only_from_servers_that_are_gone_or_dead() {
        let (_folder, database) = Database::in_new_folder().await;
        let [a, b, other] = std::array::from_fn(|_| InstanceId::new());
        for instance in [a, b, other] {
            let peer = Peer { instance, url: "http://127.0.0.1:1".to_owned() };
            database.announce(&peer, 7).await.expect("announced");
        }
        let key = ConversationKey::new(Principal::default(), "c".parse().expect("an id"));
        let take =
            async |by, stamp, dead: &[(InstanceId, i64)]| database.take(&key, by, stamp, dead).await.expect("a holder");
        assert_eq!((take(a, 1, &[]).await, take(a, 2, &[]).await), (a, a));
        for dead in [&[][..], &[(other, 7)], &[(a, 6), (other, 7)], &[(other, 7), (a, 8), (b, 7)]] {
            assert_eq!(take(b, 3, dead).await, a, "{dead:?}");
        }
        assert_eq!(take(b, 4, &[(other, 7), (a, 7)]).await, b);
        database.leave(b).await.expect("left");
        assert_eq!(take(a, 5, &[]).await, a);
        let statement = "DELETE FROM peers WHERE instance = $1";
        sqlx::query(statement).bind(a.to_string()).execute(&database.pool).await.expect("removed");
        assert_eq!(take(b, 6, &[(other, 7)]).await, b, "of no server");

        // A statement that comes late lowers no stamp, so what was taken can be given back.
        for stamp in [8, 7] {
            assert_eq!(take(other, stamp, &[]).await, other);
        }
        database.give_back(&key, other, 8).await.expect("given back");
        assert_eq!(take(a, 9, &[]).await, a);
    }

    #[tokio::test]
    async fn a_server_is_forgotten_with_what_it_has_unless_it_has_come_back() {
        let (_folder, database) = Database::in_new_folder().await;
        let [a, b] = std::array::from_fn(|_| InstanceId::new());
        for (instance, id) in [(a, "of-a"), (b, "of-b")] {
            let peer = Peer { instance, url: "http://127.0.0.1:1".to_owned() };
            database.announce(&peer, 7).await.expect("announced");
            let key = ConversationKey::new(Principal::default(), id.parse().expect("an id"));
            assert_eq!(database.take(&key, instance, 1, &[]).await.expect("a holder"), instance);
        }
        let left = async || {
            let statement = "SELECT instance FROM conversation_places ORDER BY conversation";
            let rows = sqlx::query(statement).fetch_all(&database.pool).await.expect("rows");
            let holders: Vec<InstanceId> = rows.iter().map(|row| parsed(row, "instance").expect("an id")).collect();
            (database.peers().await.expect("servers").len(), holders)
        };
        database.forget(a, 6).await.expect("done");
        assert_eq!(left().await, (2, vec![a, b]));
        database.forget(a, 7).await.expect("done");
        assert_eq!(left().await, (1, vec![b]));
        database.close().await;
    }

    #[tokio::test]
    async fn a_conversation_that_is_given_back_meanwhile_is_taken() {
        let (_folder, database) = Database::in_new_folder().await;
        // In place of another server: a conversation that is there when one is to be taken is given back.
        let trigger = "CREATE TRIGGER given_back BEFORE INSERT ON conversation_places \
            WHEN EXISTS (SELECT 1 FROM conversation_places WHERE conversation = NEW.conversation) \
            BEGIN DELETE FROM conversation_places WHERE conversation = NEW.conversation; SELECT RAISE(IGNORE); END";
        database.execute(sqlx::query(trigger)).await.expect("a trigger");
        let key = ConversationKey::new(Principal::default(), "c".parse().expect("an id"));
        let [a, b] = std::array::from_fn(|_| InstanceId::new());
        for (by, stamp) in [(a, 1), (b, 2)] {
            assert_eq!(database.take(&key, by, stamp, &[]).await.expect("a holder"), by);
        }
        database.close().await;
    }
}
