//! The parent of connections that were made with the configured token. That token has no record, so an id derived from
//! it represents it: such a connection names that id as its parent, and ends when a server starts with another token.

use secrecy::{ExposeSecret as _, SecretString};
use tracing::info;

use super::Tokens;
use crate::{
    domain::{id::TokenId, text::mac},
    ports::database::{DatabaseError, TokenStore},
};

/// How long after the start connections are looked for that came from another configured token: a server that has it
/// may be about to end, and makes connections until then.
const BINDS_FOR_MS: i64 = 10 * 60 * 1000;

/// The ids that stand for the configured token: by the first key, and by keys that were the first before.
#[derive(Debug)]
pub(super) struct Ids {
    now: TokenId,
    before: Vec<TokenId>,
}

impl Tokens {
    /// From the next reading of the database on, connections that came from another configured token have ended. To be
    /// called once, before the first, and only where the token and the keys are those of all servers of the database.
    pub fn bind(&self, token: &SecretString, mut keys: impl Iterator<Item = SecretString>) {
        let Some(first) = keys.next() else { return };
        let before = keys.map(|key| id(token, &key)).collect();
        drop(self.configured.set(Ids { now: id(token, &first), before }));
    }

    /// What connections have as their parent that are made with the configured token; `None` where none is bound to it.
    pub fn configured_id(&self) -> Option<TokenId> {
        self.configured.get().map(|ids| ids.now)
    }

    /// Before the tokens of the database are known for the first time, so that none of an earlier token is accepted;
    /// for a while also when all are read again.
    pub(super) async fn bind_connections(&self, store: &dyn TokenStore, reads_all: bool) -> Result<(), DatabaseError> {
        let is_young = self.now().saturating_sub(self.began) < BINDS_FOR_MS;
        let is_due = !self.known.read().is_loaded || (reads_all && is_young);
        let Some(ids) = self.configured.get().filter(|_| is_due) else { return Ok(()) };
        for connection in store.bind_connections(&ids.now, &ids.before, self.now()).await? {
            info!(%connection, "sign-in: the connection was made with another MCP_API_TOKEN, and has ended");
            self.report_ended(connection);
        }
        Ok(())
    }
}

/// With a key, because the token may be one that a person chose: the id alone is of no use for guessing it.
fn id(token: &SecretString, key: &SecretString) -> TokenId {
    let parts: [&[u8]; 2] = [b"configured token\0", token.expose_secret().as_bytes()];
    let mut digest = [0; 16];
    digest.copy_from_slice(&mac(key.expose_secret().as_bytes(), &parts)[..16]);
    TokenId::of_digest(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configured_id_follows_from_the_token_and_the_key() {
        let secret = |text: &str| SecretString::from(text.to_owned());
        let of = |token: &str, key: &str| id(&secret(token), &secret(key));
        assert_eq!(of("token", "key"), of("token", "key"));
        assert_ne!(of("token", "key"), of("other", "key"));
        assert_ne!(of("token", "key"), of("token", "other"));
        let text = of("token", "key").to_string();
        assert_eq!(text.parse(), Ok(of("token", "key")), "{text}");
    }
}
