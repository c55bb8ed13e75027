//! Sessions that are open, in the database.

use async_trait::async_trait;
use sqlx::{Row as _, any::AnyRow};

use super::{Database, DbResult, parsed};
use crate::{
    domain::{ConversationKey, Language, SessionId, text::whole},
    ports::sessions::{ServerProcess, SessionRecord, SessionStore},
};

#[async_trait]
impl SessionStore for Database {
    async fn record(&self, session: &SessionRecord, by: ServerProcess) -> DbResult<()> {
        let statement = "INSERT INTO open_sessions \
            (id, owner, conversation, language, instance, started_ms, opened_ms) VALUES ($1, $2, $3, $4, $5, $6, $7) \
            ON CONFLICT (id) DO UPDATE SET instance = excluded.instance, started_ms = excluded.started_ms, \
             opened_ms = excluded.opened_ms";
        let query = sqlx::query(statement)
            .bind(session.session.to_string())
            .bind(session.conversation.owner.name())
            .bind(session.conversation.id.as_str())
            .bind(session.language.as_str())
            .bind(by.instance.to_string())
            .bind(by.started_ms)
            .bind(session.opened_ms);
        self.execute(query).await.map(drop)
    }

    async fn forget(&self, session: SessionId) -> DbResult<()> {
        self.remove_session(session).await.map(drop)
    }

    async fn left(&self, by: ServerProcess, limit: usize) -> DbResult<Vec<SessionRecord>> {
        let statement = "SELECT * FROM open_sessions WHERE instance = $1 AND started_ms <> $2 \
            ORDER BY opened_ms DESC, id DESC LIMIT $3";
        let query = sqlx::query(statement).persistent(false);
        let query = query.bind(by.instance.to_string()).bind(by.started_ms).bind(whole(limit));
        query.fetch_all(self.pool()?).await?.iter().rev().map(read).collect()
    }

    async fn take(
        &self,
        conversation: &ConversationKey,
        language: &Language,
        by: ServerProcess,
    ) -> DbResult<Vec<SessionRecord>> {
        // Usually there is none, and reading waits for no writer.
        let statement = "SELECT * FROM open_sessions WHERE owner = $1 AND conversation = $2 AND language = $3 \
            AND NOT (instance = $4 AND started_ms = $5) ORDER BY opened_ms, id";
        let query = sqlx::query(statement).persistent(false);
        let query = query.bind(conversation.owner.name()).bind(conversation.id.as_str());
        let query = query.bind(language.as_str()).bind(by.instance.to_string()).bind(by.started_ms);
        let mut taken = Vec::new();
        for row in query.fetch_all(self.pool()?).await? {
            let found = read(&row)?;
            if self.remove_session(found.session).await? {
                taken.push(found);
            }
        }
        Ok(taken)
    }

    async fn forget_before(&self, unix_ms: i64) -> DbResult<()> {
        let query = sqlx::query("DELETE FROM open_sessions WHERE opened_ms < $1").bind(unix_ms);
        self.execute(query).await.map(drop)
    }
}

impl Database {
    /// Whether the session was there.
    async fn remove_session(&self, session: SessionId) -> DbResult<bool> {
        let query = sqlx::query("DELETE FROM open_sessions WHERE id = $1").bind(session.to_string());
        Ok(self.execute(query).await? > 0)
    }
}

fn read(row: &AnyRow) -> DbResult<SessionRecord> {
    Ok(SessionRecord {
        session: parsed(row, "id")?,
        conversation: ConversationKey::new(parsed(row, "owner")?, parsed(row, "conversation")?),
        language: parsed(row, "language")?,
        opened_ms: row.try_get("opened_ms")?,
    })
}
