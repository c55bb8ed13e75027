//! What operators define, in the database: policies for the network access of programs, and tool servers. And questions
//! about calls of their tools.

use async_trait::async_trait;
use sqlx::{Row as _, any::AnyRow};

use super::{Database, DbResult, parsed};
use crate::{
    domain::{
        ConversationKey,
        tools::{Answered, Approval, ApprovalId, ProposedCall},
    },
    ports::database::{ApprovalStore, DefinitionKind, DefinitionStore, StoredDefinition},
};

#[async_trait]
impl DefinitionStore for Database {
    async fn definitions(&self, kind: DefinitionKind) -> DbResult<Vec<StoredDefinition>> {
        let statement = match kind {
            DefinitionKind::NetworkPolicy => "SELECT name, definition, '' FROM network_policies ORDER BY name",
            DefinitionKind::ToolServer => "SELECT name, definition, secret FROM tool_servers ORDER BY name",
        };
        let rows: Vec<(String, String, String)> = sqlx::query_as(statement).fetch_all(self.pool()?).await?;
        let stored = |(name, definition, secret)| StoredDefinition { name, definition, secret };
        Ok(rows.into_iter().map(stored).collect())
    }

    async fn put_definition(&self, kind: DefinitionKind, stored: &StoredDefinition, at_unix_ms: i64) -> DbResult<()> {
        let StoredDefinition { name, definition, secret } = stored;
        let query = match kind {
            DefinitionKind::NetworkPolicy => sqlx::query(
                "INSERT INTO network_policies (name, definition, changed_ms) VALUES ($1, $2, $3) \
                ON CONFLICT (name) DO UPDATE SET definition = excluded.definition, changed_ms = excluded.changed_ms",
            ),
            DefinitionKind::ToolServer => sqlx::query(
                "INSERT INTO tool_servers (secret, name, definition, changed_ms) VALUES ($1, $2, $3, $4) \
                ON CONFLICT (name) DO UPDATE SET definition = excluded.definition, secret = excluded.secret, \
                changed_ms = excluded.changed_ms",
            )
            .bind(secret),
        };
        self.execute_for_client(query.bind(name).bind(definition).bind(at_unix_ms)).await.map(drop)
    }

    async fn remove_definition(&self, kind: DefinitionKind, name: &str) -> DbResult<bool> {
        let statement = match kind {
            DefinitionKind::NetworkPolicy => "DELETE FROM network_policies WHERE name = $1",
            DefinitionKind::ToolServer => "DELETE FROM tool_servers WHERE name = $1",
        };
        Ok(self.execute_for_client(sqlx::query(statement).bind(name)).await? > 0)
    }
}

fn read(row: &AnyRow) -> DbResult<Approval> {
    let answer: Option<String> = row.try_get("answer")?;
    Ok(Approval {
        id: parsed(row, "id")?,
        call: ProposedCall {
            conversation: ConversationKey::new(parsed(row, "owner")?, parsed(row, "conversation")?),
            server: row.try_get("server")?,
            tool: row.try_get("tool")?,
            definition: row.try_get("definition")?,
            arguments: row.try_get("arguments")?,
        },
        asked_unix_ms: row.try_get("asked_ms")?,
        answered: answer.as_deref().and_then(Answered::parse),
        answered_by: row.try_get("answered_by")?,
        expires_unix_ms: row.try_get("expires_ms")?,
    })
}

#[async_trait]
impl ApprovalStore for Database {
    async fn ask(&self, question: &Approval) -> DbResult<()> {
        let statement = "INSERT INTO approvals (id, owner, conversation, server, tool, definition, arguments, \
            asked_ms, expires_ms) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
        let ProposedCall { conversation, server, tool, definition, arguments } = &question.call;
        let query = sqlx::query(statement)
            .bind(question.id.to_string())
            .bind(conversation.owner.name())
            .bind(conversation.id.to_string())
            .bind(server)
            .bind(tool)
            .bind(definition)
            .bind(arguments)
            .bind(question.asked_unix_ms)
            .bind(question.expires_unix_ms);
        self.execute_for_client(query).await.map(drop)
    }

    async fn approval(&self, id: ApprovalId, owner: Option<&str>) -> DbResult<Option<Approval>> {
        let statement = "SELECT * FROM approvals WHERE id = $1 AND (owner = $2 OR $3 = 1)";
        let query = sqlx::query(statement)
            .persistent(false)
            .bind(id.to_string())
            .bind(owner.unwrap_or_default())
            .bind(i64::from(owner.is_none()));
        query.fetch_optional(self.pool()?).await?.as_ref().map(read).transpose()
    }

    async fn approvals(&self, owner: Option<&str>, open: bool, now: i64, limit: u32) -> DbResult<Vec<Approval>> {
        let statement = "SELECT * FROM approvals WHERE id IN (SELECT id FROM approvals \
            WHERE (owner = $1 OR $2 = 1) AND ($3 = 0 OR (answer IS NULL AND expires_ms > $4)) \
            ORDER BY asked_ms DESC, id DESC LIMIT $5) \
            OR id IN (SELECT id FROM approvals WHERE (owner = $1 OR $2 = 1) AND $3 = 0 \
            AND answer IN ('session', 'always') AND expires_ms > $4 ORDER BY asked_ms DESC, id DESC LIMIT $5) \
            ORDER BY asked_ms DESC, id DESC";
        let query = sqlx::query(statement)
            .persistent(false)
            .bind(owner.unwrap_or_default())
            .bind(i64::from(owner.is_none()))
            .bind(i64::from(open))
            .bind(now)
            .bind(i64::from(limit));
        query.fetch_all(self.pool()?).await?.iter().map(read).collect()
    }

    async fn open_questions(&self, owner: &str, now: i64) -> DbResult<u64> {
        let statement = "SELECT COUNT(*) FROM approvals WHERE owner = $1 AND answer IS NULL AND expires_ms > $2";
        let open: i64 = sqlx::query_scalar(statement).bind(owner).bind(now).fetch_one(self.pool()?).await?;
        Ok(u64::try_from(open).unwrap_or_default())
    }

    async fn answer(&self, id: ApprovalId, answer: Answered, by: &str, now: i64, expires: i64) -> DbResult<bool> {
        let statement = "UPDATE approvals SET answer = $1, answered_ms = $2, answered_by = $3, expires_ms = $4 \
            WHERE id = $5 AND answer IS NULL AND expires_ms > $6";
        let query = sqlx::query(statement).bind(answer.word()).bind(now).bind(by).bind(expires);
        Ok(self.execute_for_client(query.bind(id.to_string()).bind(now)).await? > 0)
    }

    async fn take_grant(&self, call: &ProposedCall, now: i64) -> DbResult<Option<ApprovalId>> {
        let ProposedCall { conversation, server, tool, definition, arguments } = call;
        let standing = "SELECT id FROM approvals WHERE owner = $1 AND server = $2 AND tool = $3 AND definition = $4 \
            AND expires_ms > $5 AND (answer = 'always' OR (answer = 'session' AND conversation = $6)) LIMIT 1";
        let query = sqlx::query(standing)
            .bind(conversation.owner.name())
            .bind(server)
            .bind(tool)
            .bind(definition)
            .bind(now)
            .bind(conversation.id.to_string());
        if let Some(row) = query.fetch_optional(self.pool()?).await? {
            return parsed(&row, "id").map(Some);
        }
        // One statement, so that of two callers one gets it.
        let once = "UPDATE approvals SET used_ms = $1 WHERE used_ms IS NULL AND id = (SELECT id FROM approvals \
            WHERE owner = $2 AND conversation = $3 AND server = $4 AND tool = $5 AND definition = $6 \
            AND arguments = $7 AND answer = 'once' AND used_ms IS NULL AND expires_ms > $8 ORDER BY id LIMIT 1) \
            RETURNING id";
        let query = sqlx::query(once)
            .bind(now)
            .bind(conversation.owner.name())
            .bind(conversation.id.to_string())
            .bind(server)
            .bind(tool)
            .bind(definition)
            .bind(arguments)
            .bind(now);
        let mut transaction = self.pool()?.begin().await?;
        let row = query.fetch_optional(&mut *transaction).await?;
        transaction.commit().await?;
        row.map(|row| parsed(&row, "id")).transpose()
    }

    async fn revoke(&self, id: ApprovalId, now: i64) -> DbResult<bool> {
        let statement = "UPDATE approvals SET expires_ms = $1 WHERE id = $2 AND expires_ms > $3 AND used_ms IS NULL \
            AND (answer IS NULL OR answer <> 'no')";
        Ok(self.execute_for_client(sqlx::query(statement).bind(now).bind(id.to_string()).bind(now)).await? > 0)
    }

    async fn forget_approvals(&self, before: i64) -> DbResult<()> {
        let statement = "DELETE FROM approvals WHERE expires_ms < $1";
        self.execute(sqlx::query(statement).bind(before)).await.map(drop)
    }
}
