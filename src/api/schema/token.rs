//! Tokens, as operators see them, the body that makes one, and the connections of clients, which are tokens too.

use schemars::JsonSchema;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{LanguageName, ScopeWord, answers, moment};
use crate::domain::{
    Failure, Grant, Language, Principal, Scope, TokenLimits, TokenRecord,
    token::{DAY, LIFE_DAYS_MAX},
};

/// The largest whole number that every JSON reader keeps (RFC 8259, 6).
const NUMBER_MAX: u64 = (1 << 53) - 1;
const LIFE_S_MAX: u64 = LIFE_DAYS_MAX * DAY.as_secs();

/// A token to create.
#[derive(Debug, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateToken {
    /// The owner whose conversations it gives access to; default `default`.
    #[schema(value_type = Option<String>, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$", min_length = 1, max_length = 64,
        example = "ann")]
    pub owner: Option<Principal>,
    /// A name for people.
    #[schema(pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$", min_length = 1, max_length = 100, example = "laptop")]
    pub name: String,
    /// What it may do; default `run` and `files`.
    #[schema(value_type = Option<Vec<ScopeWord>>, min_items = 1)]
    pub scopes: Option<Vec<String>>,
    /// The only languages that it may run; default all.
    #[schema(value_type = Option<Vec<LanguageName>>)]
    pub languages: Option<Vec<String>>,
    /// How long it is valid, in seconds; default without end.
    #[schema(minimum = 1, maximum = 172_800_000_000_u64)]
    pub expires_in_seconds: Option<u64>,
    /// Its limits.
    pub limits: Option<TokenLimitsBody>,
    /// Names of the network policies that it may use, in place of those for every token; empty for none.
    #[schema(max_items = 64)]
    pub network: Option<Vec<String>>,
}

answers! {
    /// The limits of a token; an absent member means no limit.
    #[derive(Copy, Default, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    pub struct TokenLimitsBody(limits: &TokenLimits) {
        /// Programs and cells that may begin within a minute.
        #[schema(maximum = 4_294_967_295_u64)]
        runs_per_minute: Option<u64> = limits.runs_per_minute.map(u64::from),
        /// Programs and cells that may wait or run at once.
        #[schema(maximum = 4_294_967_295_u64)]
        runs_at_once: Option<u64> = limits.runs_at_once.map(u64::from),
        /// Processor time within 24 hours, in seconds.
        #[schema(maximum = 9_007_199_254_740_991_u64)]
        cpu_seconds_per_day: Option<u64> = limits.cpu_s_per_day,
        /// Printed bytes within 24 hours.
        #[schema(maximum = 9_007_199_254_740_991_u64)]
        output_bytes_per_day: Option<u64> = limits.bytes_per_day,
    }

    /// A token, without the token itself.
    pub struct TokenStatus(token: &TokenRecord) {
        #[schema(pattern = "^token-[0-9a-f]{32}$")]
        id: String = token.id.to_string(),
        owner: String = token.owner.name().to_owned(),
        name: String = token.name.clone(),
        /// The first characters of the token.
        prefix: String = token.prefix.clone(),
        scopes: Vec<&'static str> = token.grant.scopes.iter().map(|scope| scope.as_str()).collect(),
        /// The languages that it may run; empty for all.
        languages: Vec<String> = token.grant.languages.iter().map(ToString::to_string).collect(),
        limits: TokenLimitsBody = (&token.grant.limits).into(),
        /// Names of its network policies; absent where it has those for every token.
        network: Option<Vec<String>> = token.grant.network.clone(),
        #[schema(format = DateTime)]
        created: String = moment(token.created_unix_ms),
        #[schema(format = DateTime)]
        expires: Option<String> = token.expires_unix_ms.map(moment),
        #[schema(format = DateTime)]
        last_used: Option<String> = token.used_unix_ms.map(moment),
        #[schema(format = DateTime)]
        revoked: Option<String> = token.revoked_unix_ms.map(moment),
    }

    /// A client that is signed in.
    #[schema(as = ClientConnection)]
    pub struct Connection(token: &TokenRecord) {
        /// Its id.
        id: String = token.id.to_string(),
        /// What the client calls itself, and where it is.
        name: String = token.name.clone(),
        /// The owner whose conversations it uses.
        owner: String = token.owner.name().to_owned(),
        /// What it may do.
        scopes: Vec<&'static str> = token.grant.scopes.iter().map(|scope| scope.as_str()).collect(),
        /// The token that was entered to sign it in, with whose end it ends too; absent for `MCP_API_TOKEN`.
        token_id: Option<String> = token.parent.map(|id| id.to_string()),
        /// When it was made.
        created_at: String = moment(token.created_unix_ms),
        /// When it was last used; absent before the first use.
        last_used_at: Option<String> = token.used_unix_ms.map(moment),
        /// Whether it is a person or program of another issuer, not a client that signed in here.
        is_subject: bool = token.is_subject(),
        /// Since when the tokens of this subject are refused; absent while they are accepted.
        refused_at: Option<String> = token.revoked_unix_ms.map(moment),
    }

    /// A new token.
    pub struct TokenCreated((record, secret): (&TokenRecord, &SecretString)) {
        /// Shown once: the server keeps a digest only.
        token: String = secret.expose_secret().to_owned(),
        #[serde(flatten)]
        status: TokenStatus = record.into(),
    }

    /// Tokens.
    pub struct TokenList(records: &[TokenRecord]) {
        tokens: Vec<TokenStatus> = records.iter().map(Into::into).collect(),
    }

    /// The clients that are signed in.
    pub struct ConnectionList(records: &[TokenRecord]) {
        /// Newest first.
        connections: Vec<Connection> = records.iter().map(Into::into).collect(),
    }
}

impl CreateToken {
    /// In seconds from now.
    ///
    /// # Errors
    /// A member that breaks its rule, by its name.
    pub fn expires(&self) -> Result<Option<u64>, Failure> {
        let name = "expiresInSeconds";
        if self.expires_in_seconds == Some(0) {
            return Err(Failure::argument(name, "it must be at least 1"));
        }
        at_most(name, self.expires_in_seconds, LIFE_S_MAX)
    }

    /// # Errors
    /// As [`Self::expires`].
    pub fn grant(&self) -> Result<Grant, Failure> {
        let scope = |text: &String| text.parse().map_err(|why: String| Failure::argument("scopes", why));
        let scopes =
            self.scopes.as_ref().map(|all| all.iter().map(scope).collect::<Result<Vec<_>, _>>()).transpose()?;
        let mut scopes = scopes.unwrap_or_else(|| vec![Scope::Run, Scope::Files]);
        scopes.sort_unstable();
        scopes.dedup();
        let language = |text: &String| text.parse::<Language>().map_err(|why| Failure::argument("languages", why));
        let languages = self.languages.iter().flatten().map(language).collect::<Result<_, _>>()?;
        let limits = self.limits.unwrap_or_default();
        let limits = TokenLimits {
            runs_per_minute: at_most("limits.runsPerMinute", limits.runs_per_minute, u32::MAX.into())?,
            runs_at_once: at_most("limits.runsAtOnce", limits.runs_at_once, u32::MAX.into())?,
            cpu_s_per_day: at_most("limits.cpuSecondsPerDay", limits.cpu_seconds_per_day, NUMBER_MAX)?,
            bytes_per_day: at_most("limits.outputBytesPerDay", limits.output_bytes_per_day, NUMBER_MAX)?,
        };
        Ok(Grant { scopes, languages, limits, network: self.network.clone() })
    }
}

fn at_most<T: TryFrom<u64>>(name: &str, number: Option<u64>, max: u64) -> Result<Option<T>, Failure> {
    let Some(number) = number else { return Ok(None) };
    let fits = T::try_from(number).ok().filter(|_| number <= max);
    fits.map(Some).ok_or_else(|| Failure::argument(name, format!("it must be at most {max}")))
}
