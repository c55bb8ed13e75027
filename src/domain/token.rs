//! Tokens: the proof of an owner, with scopes and limits.

use std::{str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    id::{Language, TokenId},
    owner::Principal,
    words::words,
};

/// What every token that the server makes begins with, so that people and secret scanners recognise one.
pub const TOKEN_MARK: &str = "mcps_";
/// The same for what clients that signed in get. As long as [`TOKEN_MARK`].
pub const CONNECTION_MARK: &str = "mcpc_";
/// What the subjects of another issuer are marked by, in place of the beginning of a token.
pub const SUBJECT_MARK: &str = "mcpj_";
/// How many characters of a token are shown: the mark and 6 of 43 random ones.
pub const PREFIX_CHARS: usize = TOKEN_MARK.len() + 6;
/// The longest name of a token, in characters.
pub const NAME_CHARS_MAX: usize = 100;
/// How many network policies a token may name.
pub const POLICIES_MAX: usize = 64;
/// The longest life of a token that expires, in days: it ends before the year 10000, which RFC 3339 cannot write.
pub const LIFE_DAYS_MAX: u64 = 2_000_000;
/// The day of the limits, which are counted over the last 24 hours.
pub const DAY: Duration = Duration::from_hours(24);

/// SHA-256 of a token. Tokens have 256 random bits, so a slow hash would add nothing.
pub type TokenDigest = [u8; 32];

words! {
    /// A group of things that a token may do.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Scope: as_str {
        /// Programs, cells and sessions.
        Run = "run",
        /// Files of conversations.
        Files = "files",
        /// Answers to questions whether programs may call tools.
        Approve = "approve",
        /// Tokens, history and usage of all owners.
        Admin = "admin",
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text).ok_or_else(|| format!("{text:?} is no scope: use run, files, approve or admin"))
    }
}

/// How much a token may do; `None` is without limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenLimits {
    /// Programs and cells that may begin within a minute.
    pub runs_per_minute: Option<u32>,
    /// Programs and cells that may wait or run at once.
    pub runs_at_once: Option<u32>,
    /// Processor time of programs and cells within 24 hours, in seconds.
    pub cpu_s_per_day: Option<u64>,
    /// What programs and cells print within 24 hours, in bytes.
    pub bytes_per_day: Option<u64>,
}

impl TokenLimits {
    /// Whether one of them is of a day.
    pub fn is_daily(&self) -> bool {
        self.cpu_s_per_day.is_some() || self.bytes_per_day.is_some()
    }
}

/// What a token may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// Ordered, each once.
    pub scopes: Vec<Scope>,
    /// Empty: every language.
    #[serde(default)]
    pub languages: Vec<Language>,
    #[serde(default)]
    pub limits: TokenLimits,
    /// Names of network policies; `None`: those that are for every token.
    #[serde(default)]
    pub network: Option<Vec<String>>,
}

impl Default for Grant {
    /// Everything: the configured token, and a user's own process.
    fn default() -> Self {
        Self { scopes: Scope::ALL.into(), languages: Vec::new(), limits: TokenLimits::default(), network: None }
    }
}

impl Grant {
    pub fn has(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope)
    }

    pub fn allows(&self, language: &Language) -> bool {
        self.languages.is_empty() || self.languages.contains(language)
    }
}

/// A token as it is stored. The token itself is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRecord {
    pub id: TokenId,
    pub owner: Principal,
    /// What people call it.
    pub name: String,
    /// Its first characters.
    pub prefix: String,
    pub digest: TokenDigest,
    pub grant: Grant,
    /// The token that this one was made with, by sign-in; it ends with it.
    pub parent: Option<TokenId>,
    pub created_unix_ms: i64,
    pub expires_unix_ms: Option<i64>,
    pub used_unix_ms: Option<i64>,
    pub revoked_unix_ms: Option<i64>,
}

/// An access token of a client that signed in: it stands for the token that is its connection, for a short time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessRecord {
    pub digest: TokenDigest,
    pub connection: TokenDigest,
    pub expires_unix_ms: i64,
}

impl TokenRecord {
    /// Whether it stands for a client that signed in, or for a subject of another issuer. Its own text was never given
    /// to a client.
    pub fn is_connection(&self) -> bool {
        self.prefix.starts_with(CONNECTION_MARK) || self.is_subject()
    }

    /// Whether it stands for a subject of another issuer.
    pub fn is_subject(&self) -> bool {
        self.prefix == SUBJECT_MARK
    }

    /// Whether it stands for a client of a person who signed in at an OpenID Connect provider: that of a token has it
    /// as its parent, or is of the owner `default`.
    pub fn is_of_person(&self) -> bool {
        let is_signed_in = self.is_connection() && !self.is_subject();
        is_signed_in && self.parent.is_none() && self.owner != Principal::default()
    }

    /// Whether it stands for a subject of another issuer that an operator has ended: its tokens are refused.
    pub fn is_refused_subject(&self) -> bool {
        self.is_subject() && self.revoked_unix_ms.is_some()
    }

    pub fn is_valid(&self, now_unix_ms: i64) -> bool {
        self.revoked_unix_ms.is_none() && self.expires_unix_ms.is_none_or(|end| now_unix_ms < end)
    }

    pub fn ended_before(&self, unix_ms: i64) -> bool {
        [self.revoked_unix_ms, self.expires_unix_ms].iter().flatten().any(|end| *end < unix_ms)
    }
}
