//! What clients are granted: a request is checked, a person consents, the code is redeemed, tokens are refreshed and
//! revoked.

use std::{net::IpAddr, time::Duration};

use secrecy::{ExposeSecret as _, SecretString};
use tracing::warn;

use super::{
    Refusal, SignIn,
    clients::{challenge, is_challenge, is_registered, redirect_host},
};
use crate::{
    domain::{
        Grant, Scope, TokenId, error,
        text::{ms, whole},
        token::{AccessRecord, CONNECTION_MARK, NAME_CHARS_MAX},
    },
    ports::{
        database::in_time,
        sign_in::{Code, Exchange, Redemption, RegisteredClient, TokenPair},
    },
    services::tokens::{NewToken, digest, random_secret},
};

const CODE: Duration = Duration::from_mins(1);
/// How long a refresh token that was used may be used again: clients refresh from several processes at once.
const GRACE: Duration = Duration::from_mins(1);
/// Connections of one owner. Clients connect again rather than go on, so the one that is used least ends for a new one.
const CONNECTIONS_OF_OWNER_MAX: usize = 1000;
const CODE_MARK: &str = "mcpk_";
const REFRESH_MARK: &str = "mcpr_";
/// What is kept of a host in the name of a connection, in characters.
const HOST_CHARS_MAX: usize = 80;
/// What a client gets as far as its person may, whatever it asked for: some clients ask for one scope, and cannot ask
/// for more later without losing it. `admin` would let a client make tokens, `approve` answer what people are asked.
/// The page of consent says it in words.
pub(super) const OFFERED: [Scope; 2] = [Scope::Run, Scope::Files];

/// A request for authorization, as it was sent.
#[derive(Debug, Clone, Default)]
pub struct Request {
    pub response_type: String,
    pub challenge: String,
    pub challenge_method: String,
    pub resources: Vec<String>,
}

/// What a person consents to.
#[derive(Debug, Clone)]
pub struct Consent {
    pub client: RegisteredClient,
    pub redirect: String,
    pub challenge: String,
}

/// A request for tokens, as it was sent.
#[derive(Debug, Clone, Default)]
pub struct TokenRequest {
    pub grant_type: String,
    pub client: String,
    pub secret: Option<String>,
    pub code: String,
    pub redirect: Option<String>,
    pub verifier: String,
    pub refresh: String,
    pub scope: String,
    pub resources: Vec<String>,
}

/// What a client gets.
#[derive(Debug)]
pub struct Granted {
    pub access: SecretString,
    pub expires_s: u64,
    pub refresh: SecretString,
    pub scopes: Vec<Scope>,
}

impl SignIn {
    /// Whether an answer may be sent to this address. Before that nothing is.
    ///
    /// # Errors
    /// [`Refusal::InvalidRequest`].
    pub fn redirect(&self, client: &RegisteredClient, sent: Option<&str>) -> Result<String, Refusal> {
        match (sent, client.redirects.as_slice()) {
            (Some(sent), _) if is_registered(client, sent) => Ok(sent.to_owned()),
            (None, [only]) => Ok(only.clone()),
            _ => Err(Refusal::InvalidRequest("the redirect address is not one that the client registered")),
        }
    }

    /// What a person has to consent to.
    ///
    /// # Errors
    /// What the client gets at its redirect address.
    pub fn check(&self, client: RegisteredClient, redirect: String, request: &Request) -> Result<Consent, Refusal> {
        if request.response_type != "code" {
            return Err(Refusal::UnsupportedResponseType);
        }
        if request.challenge_method != "S256" || !is_challenge(&request.challenge) {
            return Err(Refusal::InvalidRequest("a code_challenge with the method S256 is required"));
        }
        self.check_resources(&request.resources)?;
        Ok(Consent { client, redirect, challenge: request.challenge.clone() })
    }

    /// Makes a connection for a person who enters a token, and the code that leads to it.
    ///
    /// # Errors
    /// [`Refusal::WrongToken`], after a delay when there were many; [`Refusal::TooMany`]; [`Refusal::Unavailable`],
    /// also for a token that may be one of a database that was not read yet.
    pub async fn consent(&self, consent: &Consent, token: &str, from: IpAddr) -> Result<SecretString, Refusal> {
        let token = token.trim().as_bytes();
        let mut caller = self.tokens.caller_by_own(token);
        // One that another process has just made.
        if caller.is_none() && self.tokens.catch_up().await {
            caller = self.tokens.caller_by_own(token);
        }
        let granted = caller.map(|caller| {
            let grant = &caller.token.record.grant;
            let scopes: Vec<_> = OFFERED.into_iter().filter(|scope| grant.has(*scope)).collect();
            (Grant { scopes, ..grant.clone() }, caller)
        });
        let Some((grant, caller)) = granted.filter(|(grant, _)| !grant.scopes.is_empty()) else {
            // Looked up first: the tokens that are read during the delay were not compared with this one.
            let why = if self.tokens.is_loaded() { Refusal::WrongToken } else { Refusal::Unavailable };
            tokio::time::sleep(self.tokens.refused(from)).await;
            return Err(self.rates.wrong_tokens.refuse(&from, why));
        };
        let parent = &caller.token.record;
        let id = if caller.token.is_configured() { self.tokens.configured_id() } else { Some(parent.id) };
        let owner = parent.owner.clone();
        let new = NewToken { owner, name: String::new(), grant, expires_unix_ms: parent.expires_unix_ms, parent: id };
        self.connect(consent, new).await
    }

    /// Makes a connection, named after its client, and the code that leads to it.
    pub(super) async fn connect(&self, consent: &Consent, new: NewToken) -> Result<SecretString, Refusal> {
        self.rates.connections.take(&new.owner)?;
        let host = redirect_host(&consent.redirect).unwrap_or_else(|| "this computer".to_owned());
        let name = connection_name(&consent.client.name, &host);
        let connection = self.tokens.new_connection(NewToken { name, ..new }).map_err(|error| {
            warn!(%error, "sign-in: no connection could be made");
            Refusal::Unavailable
        })?;
        let code = random_secret(CODE_MARK);
        let stored = Code {
            digest: digest(code.expose_secret().as_bytes()),
            client: consent.client.id.clone(),
            redirect: consent.redirect.clone(),
            challenge: consent.challenge.clone(),
            expires_unix_ms: self.now() + whole(ms(CODE)),
        };
        for idle in self.tokens.connections_beyond(CONNECTIONS_OF_OWNER_MAX - 1, &connection.owner) {
            self.end("ended", "", idle).await?;
        }
        // The configured token has no record in the database.
        let stored_parent = connection.parent.filter(|parent| Some(*parent) != self.tokens.configured_id());
        // Another process, or another request, may have revoked the token since it was looked up.
        if !in_time(self.store.connect(&connection, &stored, stored_parent)).await? {
            return Err(Refusal::WrongToken);
        }
        self.report("allowed", &stored.client, Some(connection.id));
        self.tokens.learn(vec![connection]);
        Ok(code)
    }

    /// Answers the token endpoint.
    ///
    /// # Errors
    /// What the client gets.
    pub async fn grant(&self, request: &TokenRequest, from: IpAddr) -> Result<Granted, Refusal> {
        let wrong = || self.rates.wrong_grants.refuse(&from, Refusal::InvalidGrant);
        let client = self.authenticated(&request.client, request.secret.as_deref()).await?;
        self.check_resources(&request.resources)?;
        let (access, refresh) = (random_secret(CONNECTION_MARK), random_secret(REFRESH_MARK));
        let now = self.now();
        let pair = TokenPair {
            access: digest(access.expose_secret().as_bytes()),
            access_expires_unix_ms: now + whole(ms(self.options.access)),
            refresh: digest(refresh.expose_secret().as_bytes()),
            refresh_expires_unix_ms: now + whole(ms(self.options.refresh)),
        };
        let exchanged = match request.grant_type.as_str() {
            "" => return Err(Refusal::InvalidRequest("grant_type is missing")),
            "authorization_code" if request.code.is_empty() => return Err(Refusal::InvalidRequest("code is missing")),
            "refresh_token" if request.refresh.is_empty() => {
                return Err(Refusal::InvalidRequest("refresh_token is missing"));
            }
            "authorization_code" => {
                let challenge = challenge(&request.verifier).ok_or(Refusal::InvalidGrant)?;
                let what = Redemption {
                    digest: digest(request.code.as_bytes()),
                    client: client.clone(),
                    redirect: request.redirect.clone(),
                    challenge,
                };
                in_time(self.store.redeem(&what, &pair, now)).await?
            }
            "refresh_token" => {
                let sent = digest(request.refresh.as_bytes());
                let Some((connection, grant)) = in_time(self.store.grant_of(&sent, &client)).await? else {
                    return Err(wrong());
                };
                let is_wider = request
                    .scope
                    .split_ascii_whitespace()
                    .any(|word| word != "offline_access" && !grant.scopes.iter().any(|scope| scope.as_str() == word));
                if is_wider {
                    return Err(Refusal::InvalidScope);
                }
                self.rates.refreshes.take(&connection)?;
                in_time(self.store.rotate(&sent, &client, &pair, now, whole(ms(GRACE)))).await?
            }
            _ => return Err(Refusal::UnsupportedGrantType),
        };
        match exchanged {
            Exchange::Granted { connection, connection_digest, grant } => {
                let (digest, expires_unix_ms) = (pair.access, pair.access_expires_unix_ms);
                self.tokens.accept(AccessRecord { digest, connection: connection_digest, expires_unix_ms });
                let step = if request.grant_type == "refresh_token" { "refreshed" } else { "redeemed" };
                self.report(step, &client, Some(connection));
                let expires_s = self.options.access.as_secs();
                Ok(Granted { access, expires_s, refresh, scopes: grant.scopes })
            }
            Exchange::Reused(connection) => {
                self.end("reused", &client, connection).await?;
                Err(wrong())
            }
            Exchange::Invalid => Err(wrong()),
        }
    }

    /// Ends the connection of a token of this client. That there is none is no error (RFC 7009, 2.2).
    ///
    /// # Errors
    /// [`Refusal::InvalidClient`], [`Refusal::Unavailable`].
    pub async fn revoke(&self, token: &str, client: Option<&str>, secret: Option<&str>) -> Result<(), Refusal> {
        if let Some(id) = client {
            self.authenticated(id, secret).await?;
        }
        match in_time(self.store.connection(&digest(token.as_bytes()), client)).await? {
            Some(connection) => self.end("ended", client.unwrap_or_default(), connection).await,
            None => Ok(()),
        }
    }

    async fn end(&self, step: &'static str, client: &str, connection: TokenId) -> Result<(), Refusal> {
        self.report(step, client, Some(connection));
        match self.tokens.revoke(connection).await {
            Err(failure) if failure.code == error::Code::DatabaseUnavailable => Err(Refusal::Unavailable),
            // It had ended before.
            _ => Ok(()),
        }
    }

    /// Every resource has to be this server's: its address, or that of `/mcp` with what the query may choose.
    fn check_resources(&self, resources: &[String]) -> Result<(), Refusal> {
        let is_ours = |resource: &String| {
            let lower = resource.to_ascii_lowercase();
            let rest = lower.strip_prefix(self.issuer()).map(|rest| rest.split('?').next().unwrap_or_default());
            matches!(rest, Some("" | "/" | "/mcp" | "/mcp/"))
        };
        if resources.iter().all(is_ours) { Ok(()) } else { Err(Refusal::InvalidTarget) }
    }
}

/// The name of a connection. A client gives itself any name, so that is what is cut, and of a host its beginning.
fn connection_name(client: &str, host: &str) -> String {
    let host = match host.chars().count().checked_sub(HOST_CHARS_MAX) {
        Some(beyond @ 1..) => format!("…{}", host.chars().skip(beyond + 1).collect::<String>()),
        _ => host.to_owned(),
    };
    let left = NAME_CHARS_MAX.saturating_sub(host.chars().count() + " ()".len());
    format!("{} ({host})", client.chars().take(left).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_connection_keeps_the_end_of_its_host() {
        assert_eq!(connection_name("Tester", "claude.ai"), "Tester (claude.ai)");
        let name = connection_name(&"é".repeat(200), "claude.ai");
        assert!(name.starts_with("éé") && name.ends_with("é (claude.ai)"), "{name}");
        assert_eq!(name.chars().count(), NAME_CHARS_MAX);
        let name = connection_name(&"x".repeat(200), &format!("claude.ai.{}.example", "a".repeat(200)));
        assert!(name.starts_with("xxx") && name.contains(" (…a") && name.ends_with("a.example)"), "{name}");
        assert_eq!(name.chars().count(), NAME_CHARS_MAX);
    }
}
