//! Tokens in the database.

use async_trait::async_trait;
use sqlx::{AnyConnection, AssertSqlSafe, Row, any::AnyRow};
use tracing::warn;

use super::{Database, DbResult, digest, number, parsed, parsed_if_any};
use crate::{
    domain::{
        Grant, InstanceId, Principal, TokenId, TokenRecord,
        clock::DAY_MS,
        text::hex,
        token::{AccessRecord, CONNECTION_MARK, SUBJECT_MARK},
    },
    ports::database::{DatabaseError, TokenStore},
};

/// Tokens that one statement names.
const TOKENS_AT_ONCE: usize = 500;
/// What ended later than this after the moment from which is counted has the time of a clock that was ahead, in
/// milliseconds: two days, of which one is counted and clocks may be apart by the other.
const AHEAD_MS: i64 = 2 * DAY_MS;

#[async_trait]
impl TokenStore for Database {
    async fn changed(&self, since: i64) -> DbResult<Vec<TokenRecord>> {
        let query = sqlx::query("SELECT * FROM tokens WHERE changed_ms >= $1").persistent(false).bind(since);
        Ok(readable(&query.fetch_all(self.pool()?).await?))
    }

    async fn access(&self, since: i64) -> DbResult<Vec<AccessRecord>> {
        let statement = "SELECT sign_in_access.digest AS digest, tokens.digest AS connection, \
            sign_in_access.expires_ms AS expires_ms FROM sign_in_access \
            JOIN tokens ON tokens.id = sign_in_access.connection WHERE sign_in_access.created_ms >= $1";
        let rows = sqlx::query(statement).bind(since).fetch_all(self.pool()?).await?;
        let read = |row: &AnyRow| {
            let expires_unix_ms = row.try_get("expires_ms")?;
            Ok(AccessRecord { digest: digest(row, "digest")?, connection: digest(row, "connection")?, expires_unix_ms })
        };
        rows.iter().map(read).collect()
    }

    async fn insert(&self, token: &TokenRecord) -> DbResult<()> {
        // A caller that has waited too long drops this: a token that no client knows is not stored then.
        let mut transaction = self.pool()?.begin().await?;
        insert(&mut transaction, token).await?;
        Ok(transaction.commit().await?)
    }

    async fn revoke(&self, token: &TokenId, at_unix_ms: i64) -> DbResult<Option<Vec<TokenRecord>>> {
        let mut transaction = self.pool()?.begin().await?;
        // The token first: what is being made with it holds its row (`SignInStore::connect`), and only a statement that
        // begins afterwards sees what was made.
        let statements = [
            "UPDATE tokens SET revoked_ms = $1, changed_ms = $1 WHERE id = $2 AND revoked_ms IS NULL RETURNING *",
            "UPDATE tokens SET revoked_ms = $1, changed_ms = $1 WHERE parent = $2 AND revoked_ms IS NULL RETURNING *",
        ];
        let mut rows = Vec::new();
        for statement in statements {
            let query = sqlx::query(statement).persistent(false).bind(at_unix_ms).bind(token.to_string());
            rows.extend(query.fetch_all(&mut *transaction).await?);
        }
        transaction.commit().await?;
        Ok((!rows.is_empty()).then(|| readable(&rows)))
    }

    async fn restore(&self, subject: &TokenId, at_unix_ms: i64) -> DbResult<bool> {
        let statement = "UPDATE tokens SET revoked_ms = NULL, changed_ms = $1 \
            WHERE id = $2 AND prefix = $3 AND revoked_ms IS NOT NULL";
        let query = sqlx::query(statement).bind(at_unix_ms).bind(subject.to_string()).bind(SUBJECT_MARK);
        Ok(self.execute_for_client(query).await? > 0)
    }

    async fn bind_connections(&self, configured: &TokenId, before: &[TokenId], now: i64) -> DbResult<Vec<TokenId>> {
        let (id, owner) = (configured.to_string(), Principal::default());
        let mark = format!("{}%", CONNECTION_MARK.trim_end_matches('_'));
        let orphan = "parent <> $1 AND NOT EXISTS (SELECT 1 FROM tokens AS parents WHERE parents.id = tokens.parent)";
        // Nothing is written where nothing has changed: the database may take nothing.
        let any = format!(
            "SELECT id FROM tokens WHERE ({orphan} OR parent IS NULL AND owner = $2) AND prefix LIKE $3 \
             AND revoked_ms IS NULL LIMIT 1"
        );
        let any = sqlx::query(AssertSqlSafe(any)).bind(&id).bind(owner.name()).bind(&mark);
        if any.fetch_optional(self.pool()?).await?.is_none() {
            return Ok(Vec::new());
        }
        let mut transaction = self.pool()?.begin().await?;
        let adopt = "UPDATE tokens SET parent = $1 WHERE parent IS NULL AND owner = $2 AND prefix LIKE $3";
        sqlx::query(adopt).bind(&id).bind(owner.name()).bind(&mark).execute(&mut *transaction).await?;
        for before in before {
            let statement = "UPDATE tokens SET parent = $1 WHERE parent = $2";
            sqlx::query(statement).bind(&id).bind(before.to_string()).execute(&mut *transaction).await?;
        }
        let end = format!(
            "UPDATE tokens SET revoked_ms = $2, changed_ms = $2 WHERE {orphan} AND prefix LIKE $3 \
             AND revoked_ms IS NULL RETURNING id"
        );
        let end = sqlx::query(AssertSqlSafe(end)).bind(&id).bind(now).bind(&mark);
        let rows = end.fetch_all(&mut *transaction).await?;
        transaction.commit().await?;
        rows.iter().map(|row| parsed(row, "id")).collect()
    }

    async fn used(&self, tokens: &[(TokenId, i64)]) -> DbResult<()> {
        let mut transaction = self.pool()?.begin().await?;
        for (token, at) in tokens {
            let statement = "UPDATE tokens SET used_ms = $1 WHERE id = $2";
            sqlx::query(statement).bind(at).bind(token.to_string()).execute(&mut *transaction).await?;
        }
        Ok(transaction.commit().await?)
    }

    async fn spent(
        &self,
        tokens: &[TokenId],
        since: i64,
        (instance, began): (InstanceId, i64),
    ) -> DbResult<Vec<(TokenId, (u64, u64))>> {
        let mut spent = Vec::new();
        for some in tokens.chunks(TOKENS_AT_ONCE) {
            let placeholders = (4..4 + some.len()).map(|number| format!("${number}")).collect::<Vec<_>>().join(", ");
            let statement = format!(
                "SELECT token, CAST(COALESCE(SUM(COALESCE(cpu_ms, cpu_max_ms)), 0) AS BIGINT) AS cpu_ms, \
                 CAST(COALESCE(SUM(stdout_bytes + stderr_bytes), 0) AS BIGINT) AS bytes FROM history \
                 WHERE ended_ms >= $1 AND ended_ms < $1 + {AHEAD_MS} AND (instance <> $2 OR begun_ms < $3) \
                 AND token IN ({placeholders}) GROUP BY token"
            );
            let query = sqlx::query(AssertSqlSafe(statement)).bind(since).bind(instance.to_string()).bind(began);
            let query = some.iter().fold(query, |query, token| query.bind(token.to_string()));
            for row in query.fetch_all(self.pool()?).await? {
                let (cpu_ms, bytes) = (number(&row, "cpu_ms")?, number(&row, "bytes")?);
                spent.push((parsed(&row, "token")?, (cpu_ms.unwrap_or_default(), bytes.unwrap_or_default())));
            }
        }
        Ok(spent)
    }

    async fn forget(&self, before_unix_ms: i64) -> DbResult<()> {
        // A subject of another issuer that was refused stays refused.
        let statement = "DELETE FROM tokens WHERE (revoked_ms < $1 OR expires_ms < $1) AND prefix <> $2";
        self.execute(sqlx::query(statement).bind(before_unix_ms).bind(SUBJECT_MARK)).await.map(drop)
    }
}

pub(super) async fn insert(connection: &mut AnyConnection, token: &TokenRecord) -> DbResult<()> {
    let may = serde_json::to_string(&token.grant)?;
    let statement = "INSERT INTO tokens \
        (id, owner, name, prefix, digest, may, parent, created_ms, changed_ms, expires_ms, used_ms, revoked_ms) \
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8, $9, $10, $11)";
    sqlx::query(statement)
        .bind(token.id.to_string())
        .bind(token.owner.name())
        .bind(&token.name)
        .bind(&token.prefix)
        .bind(hex(&token.digest))
        .bind(may)
        .bind(token.parent.map(|id| id.to_string()))
        .bind(token.created_unix_ms)
        .bind(token.expires_unix_ms)
        .bind(token.used_unix_ms)
        .bind(token.revoked_unix_ms)
        .execute(connection)
        .await?;
    Ok(())
}

/// What another version of the server wrote must not keep the end of any other token from being read.
fn readable(rows: &[AnyRow]) -> Vec<TokenRecord> {
    let skipped = |error: &DatabaseError| warn!(%error, "a token in the database cannot be read, and is not accepted");
    rows.iter().filter_map(|row| read(row).inspect_err(skipped).ok()).collect()
}

fn read(row: &AnyRow) -> DbResult<TokenRecord> {
    Ok(TokenRecord {
        id: parsed(row, "id")?,
        owner: parsed(row, "owner")?,
        name: row.try_get("name")?,
        prefix: row.try_get("prefix")?,
        digest: digest(row, "digest")?,
        grant: may(row)?,
        parent: parsed_if_any(row, "parent")?,
        created_unix_ms: row.try_get("created_ms")?,
        expires_unix_ms: row.try_get("expires_ms")?,
        used_unix_ms: row.try_get("used_ms")?,
        revoked_unix_ms: row.try_get("revoked_ms")?,
    })
}

/// What the token of a row may do.
pub(super) fn may(row: &AnyRow) -> DbResult<Grant> {
    let may: String = row.try_get("may")?;
    Ok(serde_json::from_str(&may)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_token_of_another_version_keeps_no_other_from_being_read() {
        let (_folder, database) = Database::in_new_folder().await;
        let token = |n: u8| TokenRecord {
            id: TokenId::new(),
            owner: "ann".parse().expect("an owner"),
            name: "laptop".to_owned(),
            prefix: "mcps_012345".to_owned(),
            digest: [n; 32],
            grant: Grant::default(),
            parent: None,
            created_unix_ms: 1,
            expires_unix_ms: None,
            used_unix_ms: None,
            revoked_unix_ms: None,
        };
        let (known, other) = (token(1), token(2));
        for token in [&known, &other] {
            database.insert(token).await.expect("stored");
        }
        let change = sqlx::query("UPDATE tokens SET may = $1 WHERE id = $2").bind("{\"scopes\":[\"fly\"]}");
        database.execute(change.bind(other.id.to_string())).await.expect("changed");
        assert_eq!(database.changed(0).await.expect("tokens"), [known]);
        database.close().await;
    }
}
