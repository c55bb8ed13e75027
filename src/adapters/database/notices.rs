//! Short texts between the servers of a PostgreSQL database, by NOTIFY. Who listens has a connection of its own, beside
//! those of the pool.

use async_trait::async_trait;
use futures_util::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use sqlx::postgres::PgListener;

use super::{Database, DbResult};
use crate::ports::peers::Notices;

const CHANNEL: &str = "sandbox_notices";

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
