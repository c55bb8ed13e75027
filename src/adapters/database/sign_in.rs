//! Sign-in in the database. A transaction begins with its conditional update, so that of two that come at once one
//! waits for the other and then finds the code redeemed or the token retired.

use async_trait::async_trait;
use sqlx::{Any, AnyConnection, Row, Transaction, any::AnyRow};

use super::{
    Database, DbResult, digest, parsed,
    tokens::{insert, may},
};
use crate::{
    domain::{Grant, TokenDigest, TokenId, TokenRecord, clock::DAY_MS, text::hex, token::CONNECTION_MARK},
    ports::sign_in::{Code, Exchange, Redemption, RegisteredClient, SignInStore, TokenPair},
};

/// Clients that were not confirmed; the oldest leave for new ones.
const UNCONFIRMED_MAX: i64 = 20_000;
/// How long a client without a connection is kept.
const UNUSED_CLIENT_MS: i64 = 90 * DAY_MS;

#[async_trait]
impl SignInStore for Database {
    async fn register(&self, client: &RegisteredClient, fingerprint: &TokenDigest, now: i64) -> DbResult<String> {
        let mut transaction = self.pool()?.begin().await?;
        let insert = "INSERT INTO sign_in_clients (id, fingerprint, name, redirects, secret, created_ms) \
            VALUES ($1, $2, $3, $4, $5, $6) \
            ON CONFLICT (fingerprint) DO UPDATE SET created_ms = excluded.created_ms RETURNING id";
        let redirects = serde_json::to_string(&client.redirects)?;
        let row = sqlx::query(insert)
            .bind(&client.id)
            .bind(hex(fingerprint))
            .bind(&client.name)
            .bind(redirects)
            .bind(client.secret.as_ref().map(|digest| hex(digest)))
            .bind(now)
            .fetch_one(&mut *transaction)
            .await?;
        let id: String = row.try_get("id")?;
        trim(&mut transaction, UNCONFIRMED_MAX).await?;
        transaction.commit().await?;
        Ok(id)
    }

    async fn client(&self, id: &str) -> DbResult<Option<RegisteredClient>> {
        let query = sqlx::query("SELECT * FROM sign_in_clients WHERE id = $1").persistent(false).bind(id);
        query.fetch_optional(self.pool()?).await?.as_ref().map(client).transpose()
    }

    async fn connect(&self, connection: &TokenRecord, code: &Code, stored_parent: Option<TokenId>) -> DbResult<bool> {
        let mut transaction = self.pool()?.begin().await?;
        if let Some(parent) = stored_parent {
            // It changes nothing, and holds the parent's row: a revocation waits until the connection is there.
            let hold = "UPDATE tokens SET used_ms = used_ms WHERE id = $1 AND revoked_ms IS NULL \
                AND (expires_ms IS NULL OR expires_ms > $2)";
            let hold = sqlx::query(hold).bind(parent.to_string()).bind(connection.created_unix_ms);
            if hold.execute(&mut *transaction).await?.rows_affected() == 0 {
                return Ok(false);
            }
        }
        insert(&mut transaction, connection).await?;
        let statement = "INSERT INTO sign_in_codes (digest, connection, client, redirect, challenge, expires_ms) \
            VALUES ($1, $2, $3, $4, $5, $6)";
        sqlx::query(statement)
            .bind(hex(&code.digest))
            .bind(connection.id.to_string())
            .bind(&code.client)
            .bind(&code.redirect)
            .bind(&code.challenge)
            .bind(code.expires_unix_ms)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(true)
    }

    async fn redeem(&self, what: &Redemption, pair: &TokenPair, now: i64) -> DbResult<Exchange> {
        let mut transaction = self.pool()?.begin().await?;
        let update = "UPDATE sign_in_codes SET used_ms = $1 WHERE digest = $2 AND client = $3 AND challenge = $4 \
            AND (redirect = $5 OR $6 = 1) AND used_ms IS NULL AND expires_ms > $1 RETURNING connection";
        let row = sqlx::query(update)
            .bind(now)
            .bind(hex(&what.digest))
            .bind(&what.client)
            .bind(&what.challenge)
            .bind(what.redirect.as_deref().unwrap_or_default())
            .bind(i64::from(what.redirect.is_none()))
            .fetch_optional(&mut *transaction)
            .await?;
        let Some(row) = row else {
            let used = "SELECT connection FROM sign_in_codes WHERE digest = $1 AND client = $2 AND used_ms IS NOT NULL";
            let used = sqlx::query(used).bind(hex(&what.digest)).bind(&what.client);
            let used = used.fetch_optional(&mut *transaction).await?;
            return used.as_ref().map_or(Ok(Exchange::Invalid), |row| Ok(Exchange::Reused(parsed(row, "connection")?)));
        };
        grant(transaction, parsed(&row, "connection")?, &what.client, pair, now).await
    }

    async fn grant_of(&self, refresh: &TokenDigest, client: &str) -> DbResult<Option<(TokenId, Grant)>> {
        let select = "SELECT tokens.id AS id, tokens.may AS may FROM sign_in_refresh \
            JOIN tokens ON tokens.id = sign_in_refresh.connection \
            WHERE sign_in_refresh.digest = $1 AND sign_in_refresh.client = $2";
        let row = sqlx::query(select).bind(hex(refresh)).bind(client).fetch_optional(self.pool()?).await?;
        row.as_ref().map(|row| Ok((parsed(row, "id")?, may(row)?))).transpose()
    }

    async fn rotate(
        &self,
        refresh: &TokenDigest,
        client: &str,
        pair: &TokenPair,
        now: i64,
        grace_ms: i64,
    ) -> DbResult<Exchange> {
        let mut transaction = self.pool()?.begin().await?;
        let update = "UPDATE sign_in_refresh SET retired_ms = COALESCE(retired_ms, $1) \
            WHERE digest = $2 AND client = $3 AND expires_ms > $1 RETURNING connection, retired_ms";
        let row =
            sqlx::query(update).bind(now).bind(hex(refresh)).bind(client).fetch_optional(&mut *transaction).await?;
        let Some(row) = row else { return Ok(Exchange::Invalid) };
        let connection: TokenId = parsed(&row, "connection")?;
        // One that was retired later than now has an unknown age: the clock was set back.
        if (now - row.try_get::<i64, _>("retired_ms")?).abs() > grace_ms {
            return Ok(Exchange::Reused(connection));
        }
        grant(transaction, connection, client, pair, now).await
    }

    async fn connection(&self, token: &TokenDigest, client: Option<&str>) -> DbResult<Option<TokenId>> {
        for table in ["sign_in_refresh", "sign_in_access"] {
            let select = format!("SELECT connection, client FROM {table} WHERE digest = $1");
            let row = sqlx::query(sqlx::AssertSqlSafe(select)).bind(hex(token)).fetch_optional(self.pool()?).await?;
            let Some(row) = row else { continue };
            let owner: String = row.try_get("client")?;
            return client.is_none_or(|client| client == owner).then(|| parsed(&row, "connection")).transpose();
        }
        Ok(None)
    }

    async fn forget(&self, now: i64) -> DbResult<Vec<TokenId>> {
        let mut transaction = self.pool()?.begin().await?;
        let deletes = [
            ("DELETE FROM sign_in_codes WHERE expires_ms < $1", now - DAY_MS),
            ("DELETE FROM sign_in_refresh WHERE expires_ms < $1", now),
            ("DELETE FROM sign_in_access WHERE expires_ms < $1", now),
            ("DELETE FROM sign_in_clients WHERE confirmed_ms IS NULL AND created_ms < $1", now - DAY_MS),
            (
                "DELETE FROM sign_in_clients WHERE confirmed_ms < $1 AND created_ms < $1 \
                 AND NOT EXISTS (SELECT 1 FROM sign_in_refresh WHERE sign_in_refresh.client = sign_in_clients.id)",
                now - UNUSED_CLIENT_MS,
            ),
        ];
        for (statement, before) in deletes {
            sqlx::query(statement).bind(before).execute(&mut *transaction).await?;
        }
        let idle = "SELECT id FROM tokens WHERE prefix LIKE $1 AND revoked_ms IS NULL AND created_ms < $2 AND NOT \
            EXISTS (SELECT 1 FROM sign_in_refresh WHERE sign_in_refresh.connection = tokens.id)";
        let rows = sqlx::query(idle)
            .bind(format!("{}%", CONNECTION_MARK.trim_end_matches('_')))
            .bind(now - DAY_MS)
            .fetch_all(&mut *transaction)
            .await?;
        transaction.commit().await?;
        rows.iter().map(|row| parsed(row, "id")).collect()
    }
}

/// Removes the oldest clients that were not confirmed, so that strangers cannot fill the disk.
async fn trim(connection: &mut AnyConnection, unconfirmed_max: i64) -> DbResult<()> {
    let statement = "DELETE FROM sign_in_clients WHERE confirmed_ms IS NULL AND created_ms < (SELECT created_ms FROM \
        sign_in_clients WHERE confirmed_ms IS NULL ORDER BY created_ms DESC LIMIT 1 OFFSET $1)";
    sqlx::query(statement).bind(unconfirmed_max).execute(connection).await?;
    Ok(())
}

/// Confirms a client, stores a pair and commits, if the connection goes on, and the token that it came from was not
/// revoked.
async fn grant(
    mut transaction: Transaction<'_, Any>,
    connection: TokenId,
    client: &str,
    pair: &TokenPair,
    now: i64,
) -> DbResult<Exchange> {
    let confirm = "UPDATE sign_in_clients SET confirmed_ms = $1 WHERE id = $2";
    sqlx::query(confirm).bind(now).bind(client).execute(&mut *transaction).await?;
    let select = "SELECT digest, may FROM tokens WHERE id = $1 AND revoked_ms IS NULL \
        AND (expires_ms IS NULL OR expires_ms > $2) AND NOT EXISTS (SELECT 1 FROM tokens AS parents \
        WHERE parents.id = tokens.parent AND parents.revoked_ms IS NOT NULL)";
    let row = sqlx::query(select).bind(connection.to_string()).bind(now).fetch_optional(&mut *transaction).await?;
    let Some(row) = row else { return Ok(Exchange::Invalid) };
    let refresh = "INSERT INTO sign_in_refresh (digest, connection, client, expires_ms) VALUES ($1, $2, $3, $4)";
    sqlx::query(refresh)
        .bind(hex(&pair.refresh))
        .bind(connection.to_string())
        .bind(client)
        .bind(pair.refresh_expires_unix_ms)
        .execute(&mut *transaction)
        .await?;
    let access = "INSERT INTO sign_in_access (digest, connection, client, created_ms, expires_ms) \
        VALUES ($1, $2, $3, $4, $5)";
    sqlx::query(access)
        .bind(hex(&pair.access))
        .bind(connection.to_string())
        .bind(client)
        .bind(now)
        .bind(pair.access_expires_unix_ms)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(Exchange::Granted { connection, connection_digest: digest(&row, "digest")?, grant: may(&row)? })
}

fn client(row: &AnyRow) -> DbResult<RegisteredClient> {
    let redirects: String = row.try_get("redirects")?;
    let has_secret = row.try_get::<Option<String>, _>("secret")?.is_some();
    Ok(RegisteredClient {
        id: row.try_get("id")?,
        name: row.try_get("name")?,
        redirects: serde_json::from_str(&redirects)?,
        secret: has_secret.then(|| digest(row, "secret")).transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn oldest_clients_leave_that_were_not_confirmed() {
        let (_folder, database) = Database::in_new_folder().await;
        for n in 0..10_u8 {
            let (id, name) = (n.to_string(), "a client".to_owned());
            let client = RegisteredClient { id, name, redirects: Vec::new(), secret: None };
            database.register(&client, &[n; 32], n.into()).await.expect("registered");
        }
        let confirm = "UPDATE sign_in_clients SET confirmed_ms = 1 WHERE id = '0'";
        sqlx::query(confirm).execute(&database.pool).await.expect("confirmed");
        trim(&mut database.pool.acquire().await.expect("a connection"), 3).await.expect("trimmed");
        let mut left = Vec::new();
        for n in 0..10 {
            if database.client(&n.to_string()).await.expect("the database").is_some() {
                left.push(n);
            }
        }
        assert_eq!(left, [0, 6, 7, 8, 9]);
    }

    #[tokio::test]
    async fn client_that_has_just_registered_again_is_kept() {
        let (_folder, database) = Database::in_new_folder().await;
        let now = UNUSED_CLIENT_MS + 2 * DAY_MS;
        for (n, registered) in [(0_u8, 1), (1, now)] {
            let (id, name) = (n.to_string(), "a client".to_owned());
            let client = RegisteredClient { id, name, redirects: Vec::new(), secret: None };
            database.register(&client, &[n; 32], registered).await.expect("registered");
        }
        let confirm = "UPDATE sign_in_clients SET confirmed_ms = 1";
        sqlx::query(confirm).execute(&database.pool).await.expect("confirmed");
        SignInStore::forget(&database, now).await.expect("the database");
        let left = [database.client("0").await, database.client("1").await];
        assert_eq!(left.map(|client| client.expect("the database").is_some()), [false, true]);
    }
}
