//! Tokens, as operators see them, and the body that makes one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{LanguageName, ScopeWord, rfc3339};
use crate::domain::{
    error::Failure,
    id::Language,
    owner::Principal,
    token::{Grant, Scope, TokenLimits, TokenRecord},
};

/// The largest whole number that every JSON reader keeps (RFC 8259, 6).
const NUMBER_MAX: u64 = (1 << 53) - 1;

/// A token to create.
#[derive(Debug, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateToken {
    /// The owner whose conversations it gives access to; default `default`.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$", min_length = 1, max_length = 64, example = "ann")]
    pub owner: Option<String>,
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
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_u64)]
    pub expires_in_seconds: Option<u64>,
    /// Its limits.
    pub limits: Option<TokenLimitsBody>,
    /// Names of the network policies that it may use, in place of those for every token; empty for none.
    #[schema(max_items = 64)]
    pub network: Option<Vec<String>>,
}

/// The limits of a token; an absent member means no limit.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenLimitsBody {
    /// Programs and cells that may begin within a minute.
    #[schema(maximum = 4_294_967_295_u64)]
    pub runs_per_minute: Option<u64>,
    /// Programs and cells that may wait or run at once.
    #[schema(maximum = 4_294_967_295_u64)]
    pub runs_at_once: Option<u64>,
    /// Processor time within 24 hours, in seconds.
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    pub cpu_seconds_per_day: Option<u64>,
    /// Printed bytes within 24 hours.
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    pub output_bytes_per_day: Option<u64>,
}

/// A token, without the token itself.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenStatus {
    #[schema(pattern = "^token-[0-9a-f]{32}$")]
    pub id: String,
    pub owner: String,
    pub name: String,
    /// The first characters of the token.
    pub prefix: String,
    pub scopes: Vec<&'static str>,
    /// The languages that it may run; empty for all.
    pub languages: Vec<String>,
    pub limits: TokenLimitsBody,
    /// Names of its network policies; absent where it has those for every token.
    pub network: Option<Vec<String>>,
    #[schema(format = DateTime)]
    pub created: String,
    #[schema(format = DateTime)]
    pub expires: Option<String>,
    #[schema(format = DateTime)]
    pub last_used: Option<String>,
    #[schema(format = DateTime)]
    pub revoked: Option<String>,
}

/// A new token.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenCreated {
    /// Shown once: the server keeps a digest only.
    pub token: String,
    #[serde(flatten)]
    pub status: TokenStatus,
}

/// Tokens.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenList {
    pub tokens: Vec<TokenStatus>,
}

impl CreateToken {
    /// # Errors
    /// A member that breaks its rule, by its name.
    pub fn owner(&self) -> Result<Principal, Failure> {
        let Some(owner) = &self.owner else { return Ok(Principal::default()) };
        owner.parse().map_err(|why| Failure::argument("owner", why))
    }

    /// In seconds from now.
    ///
    /// # Errors
    /// As [`Self::owner`].
    pub fn expires(&self) -> Result<Option<u64>, Failure> {
        self.expires_in_seconds.map(|left| at_most("expiresInSeconds", left, NUMBER_MAX)).transpose()
    }

    /// # Errors
    /// As [`Self::owner`].
    pub fn grant(&self) -> Result<Grant, Failure> {
        let scope = |text: &String| text.parse().map_err(|why: String| Failure::argument("scopes", why));
        let scopes =
            self.scopes.as_ref().map(|all| all.iter().map(scope).collect::<Result<Vec<_>, _>>()).transpose()?;
        let mut scopes = scopes.unwrap_or_else(|| vec![Scope::Run, Scope::Files]);
        scopes.sort_unstable();
        scopes.dedup();
        let language = |text: &String| {
            let parsed = text.parse::<Language>();
            parsed.map_err(|why| Failure::argument("languages", why))
        };
        let languages = self.languages.iter().flatten().map(language).collect::<Result<_, _>>()?;
        let limits = self.limits.unwrap_or_default();
        let small =
            |name: &str, limit: Option<u64>| limit.map(|limit| at_most(name, limit, u32::MAX.into())).transpose();
        let large = |name: &str, limit: Option<u64>| limit.map(|limit| at_most(name, limit, NUMBER_MAX)).transpose();
        let limits = TokenLimits {
            runs_per_minute: small("limits.runsPerMinute", limits.runs_per_minute)?,
            runs_at_once: small("limits.runsAtOnce", limits.runs_at_once)?,
            cpu_s_per_day: large("limits.cpuSecondsPerDay", limits.cpu_seconds_per_day)?,
            bytes_per_day: large("limits.outputBytesPerDay", limits.output_bytes_per_day)?,
        };
        Ok(Grant { scopes, languages, limits, network: self.network.clone() })
    }
}

fn at_most<T: TryFrom<u64>>(name: &str, number: u64, max: u64) -> Result<T, Failure> {
    let fits = T::try_from(number).ok().filter(|_| number <= max);
    fits.ok_or_else(|| Failure::argument(name, format!("it must be at most {max}")))
}

impl From<&TokenRecord> for TokenStatus {
    fn from(token: &TokenRecord) -> Self {
        let moment = |unix_ms: i64| rfc3339(unix_ms.div_euclid(1000));
        let limits = &token.grant.limits;
        Self {
            id: token.id.to_string(),
            owner: token.owner.name().to_owned(),
            name: token.name.clone(),
            prefix: token.prefix.clone(),
            scopes: token.grant.scopes.iter().map(|scope| scope.as_str()).collect(),
            languages: token.grant.languages.iter().map(ToString::to_string).collect(),
            limits: TokenLimitsBody {
                runs_per_minute: limits.runs_per_minute.map(u64::from),
                runs_at_once: limits.runs_at_once.map(u64::from),
                cpu_seconds_per_day: limits.cpu_s_per_day,
                output_bytes_per_day: limits.bytes_per_day,
            },
            network: token.grant.network.clone(),
            created: moment(token.created_unix_ms),
            expires: token.expires_unix_ms.map(moment),
            last_used: token.used_unix_ms.map(moment),
            revoked: token.revoked_unix_ms.map(moment),
        }
    }
}
