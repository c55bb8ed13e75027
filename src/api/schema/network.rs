//! The network access of programs: the connections that they made, and the policies.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::LanguageName;
use crate::{
    domain::{
        error::Failure,
        network::{NetworkUse, Policy, PolicyText, Refusal},
        text::{ms, rfc3339},
    },
    services::network::Decision,
};

/// The outcome of a connection.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ConnectionWord {
    /// The connection was made.
    Allowed,
    /// A policy forbids it.
    Refused,
    /// It is allowed, but the host could not be reached.
    Failed,
}

/// A connection of a program that has ended or was not made.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Connection {
    /// Host and port.
    #[schema(example = "pypi.org:443")]
    pub target: String,
    pub decision: ConnectionWord,
    /// One word for why it was refused or failed.
    #[schema(example = "not_allowed")]
    pub reason: Option<&'static str>,
    /// The reason as a sentence.
    pub message: Option<String>,
    /// Bytes sent to the host.
    pub sent_bytes: u64,
    /// Bytes received from the host.
    pub received_bytes: u64,
    pub ms: u64,
}

/// A connection of one of the caller's conversations.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkDecision {
    /// When it ended (RFC 3339).
    #[schema(format = DateTime)]
    pub at: String,
    pub conversation_id: String,
    pub language: String,
    #[serde(flatten)]
    pub connection: Connection,
}

/// Connections, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct NetworkDecisions {
    pub decisions: Vec<NetworkDecision>,
}

/// A connection of a conversation, with its owner.
#[derive(Debug, Serialize, ToSchema)]
pub struct OwnedDecision {
    pub owner: String,
    #[serde(flatten)]
    pub decision: NetworkDecision,
}

/// Connections of all owners, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct OwnedDecisions {
    pub decisions: Vec<OwnedDecision>,
}

impl From<&NetworkUse> for Connection {
    fn from(used: &NetworkUse) -> Self {
        let refusal = used.refusal.as_ref();
        Self {
            target: used.target.clone(),
            decision: match refusal {
                None => ConnectionWord::Allowed,
                Some(refusal) if refusal.is_forbidden() => ConnectionWord::Refused,
                Some(_) => ConnectionWord::Failed,
            },
            reason: refusal.map(Refusal::word),
            message: refusal.map(ToString::to_string),
            sent_bytes: used.sent_bytes,
            received_bytes: used.received_bytes,
            ms: ms(used.took),
        }
    }
}

impl From<&Decision> for OwnedDecision {
    fn from(decision: &Decision) -> Self {
        Self { owner: decision.conversation.owner.name().to_owned(), decision: decision.into() }
    }
}

impl From<&Decision> for NetworkDecision {
    fn from(decision: &Decision) -> Self {
        Self {
            at: rfc3339(decision.at_unix_ms.div_euclid(1000)),
            conversation_id: decision.conversation.id.to_string(),
            language: decision.language.to_string(),
            connection: (&decision.used).into(),
        }
    }
}

/// Hosts that programs may reach.
#[derive(Debug, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyBody {
    /// `example.com`, `*.example.com` for every name below it, or an address; each with a port or without.
    #[schema(min_items = 1, max_items = 500, example = json!(["pypi.org", "*.example.com:8443"]))]
    pub hosts: Vec<String>,
    /// Ports for hosts that are given without one; default 80 and 443.
    #[serde(default)]
    #[schema(value_type = Option<Vec<u16>>, max_items = 100)]
    pub ports: Vec<u16>,
    /// Addresses outside the public internet that these hosts may resolve to.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>, max_items = 100, example = json!(["10.1.2.3"]))]
    pub addresses: Vec<String>,
    /// Languages whose programs it applies to; default all.
    #[serde(default)]
    #[schema(value_type = Option<Vec<LanguageName>>, max_items = 100)]
    pub languages: Vec<String>,
    /// Whether it applies to every token that names no policies.
    #[serde(default)]
    #[schema(value_type = Option<bool>)]
    pub every_token: bool,
    /// Allowed HTTP methods; default all. To see them, the server decrypts TLS.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>, max_items = 32, example = json!(["GET"]))]
    pub methods: Vec<String>,
    /// Allowed paths of requests; one that ends in `/` allows everything below it. Default all.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>, max_items = 100, example = json!(["/v1/"]))]
    pub paths: Vec<String>,
    /// Requests per minute of one owner; 0 for no limit.
    #[serde(default)]
    #[schema(value_type = Option<u64>, maximum = 4_294_967_295_u64)]
    pub requests_per_minute: u32,
    /// Bytes per minute of one owner, sent and received together; 0 for no limit.
    #[serde(default)]
    #[schema(value_type = Option<u64>, maximum = 4_294_967_295_u64)]
    pub bytes_per_minute: u32,
}

impl PolicyBody {
    /// # Errors
    /// [`InvalidArgument`](crate::domain::error::Code::InvalidArgument) for an address that is none.
    pub fn text(self) -> Result<PolicyText, Failure> {
        let address = |text: &String| {
            let why = || format!("`{}` is no address", text.chars().take(80).collect::<String>().escape_debug());
            text.parse::<IpAddr>().map_err(|_| Failure::argument("addresses", why()))
        };
        let addresses = self.addresses.iter().map(address).collect::<Result<_, _>>()?;
        Ok(PolicyText {
            hosts: self.hosts,
            ports: self.ports,
            addresses,
            languages: self.languages,
            every_token: self.every_token,
            methods: self.methods,
            paths: self.paths,
            requests_per_minute: self.requests_per_minute,
            bytes_per_minute: self.bytes_per_minute,
        })
    }
}

impl From<&PolicyText> for PolicyBody {
    fn from(text: &PolicyText) -> Self {
        Self {
            hosts: text.hosts.clone(),
            ports: text.ports.clone(),
            addresses: text.addresses.iter().map(ToString::to_string).collect(),
            languages: text.languages.clone(),
            every_token: text.every_token,
            methods: text.methods.clone(),
            paths: text.paths.clone(),
            requests_per_minute: text.requests_per_minute,
            bytes_per_minute: text.bytes_per_minute,
        }
    }
}

/// A policy in force.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyResult {
    #[schema(example = "packages")]
    pub name: String,
    /// Whether it comes from the server's settings, so that it cannot be changed here.
    pub is_configured: bool,
    pub policy: PolicyBody,
}

/// The policies in force.
#[derive(Debug, Serialize, ToSchema)]
pub struct PolicyList {
    pub policies: Vec<PolicyResult>,
}

impl PolicyResult {
    pub fn new(policy: &Policy, is_configured: bool) -> Self {
        Self { name: policy.name.clone(), is_configured, policy: (&policy.text).into() }
    }
}
