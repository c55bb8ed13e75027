//! The network access of programs: the connections that they made, and the policies.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{LanguageName, answers, moment};
use crate::{
    domain::{
        Failure,
        network::{Decision, NetworkUse, Policy, PolicyText, Refusal},
        text::{ms, shown},
    },
    services::network::Policies,
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

answers! {
    /// A connection of a program that has ended or was not made.
    pub struct Connection(used: &NetworkUse) {
        /// Host and port.
        #[schema(example = "pypi.org:443")]
        target: String = used.target.clone(),
        decision: ConnectionWord = match &used.refusal {
            None => ConnectionWord::Allowed,
            Some(refusal) if refusal.is_forbidden() => ConnectionWord::Refused,
            Some(_) => ConnectionWord::Failed,
        },
        /// One word for why it was refused or failed.
        #[schema(example = "not_allowed")]
        reason: Option<&'static str> = used.refusal.as_ref().map(Refusal::word),
        /// The reason as a sentence.
        message: Option<String> = used.refusal.as_ref().map(ToString::to_string),
        /// Bytes sent to the host.
        sent_bytes: u64 = used.sent_bytes,
        /// Bytes received from the host.
        received_bytes: u64 = used.received_bytes,
        ms: u64 = ms(used.took),
    }

    /// A connection of one of the caller's conversations.
    pub struct NetworkDecision(decision: &Decision) {
        /// When it ended (RFC 3339).
        #[schema(format = DateTime)]
        at: String = moment(decision.at_unix_ms),
        conversation_id: String = decision.conversation.id.to_string(),
        language: String = decision.language.to_string(),
        #[serde(flatten)]
        connection: Connection = (&decision.used).into(),
    }

    /// Connections, newest first.
    pub struct NetworkDecisions(newest: &[Decision]) {
        decisions: Vec<NetworkDecision> = newest.iter().map(Into::into).collect(),
    }

    /// A connection of a conversation, with its owner.
    pub struct OwnedDecision(decision: &Decision) {
        owner: String = decision.conversation.owner.name().to_owned(),
        #[serde(flatten)]
        decision: NetworkDecision = decision.into(),
    }

    /// Connections of all owners, newest first.
    pub struct OwnedDecisions(newest: &[Decision]) {
        decisions: Vec<OwnedDecision> = newest.iter().map(Into::into).collect(),
    }

    /// Hosts that programs may reach. At most 16 KiB as JSON.
    #[derive(Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    pub struct PolicyBody(text: &PolicyText) {
        /// `example.com`, `*.example.com` for every name below it, or an address; each with a port or without.
        #[schema(min_items = 1, max_items = 500, example = json!(["pypi.org", "*.example.com:8443"]))]
        hosts: Vec<String> = text.hosts.clone(),
        /// Ports for hosts that are given without one; default 80 and 443.
        #[serde(default)]
        #[schema(value_type = Option<Vec<u16>>, max_items = 100)]
        ports: Vec<u16> = text.ports.clone(),
        /// Addresses outside the public internet that these hosts may resolve to.
        #[serde(default)]
        #[schema(value_type = Option<Vec<String>>, max_items = 100, example = json!(["10.1.2.3"]))]
        addresses: Vec<String> = text.addresses.iter().map(ToString::to_string).collect(),
        /// Languages whose programs it applies to; default all.
        #[serde(default)]
        #[schema(value_type = Option<Vec<LanguageName>>, max_items = 100)]
        languages: Vec<String> = text.languages.clone(),
        /// Whether it applies to every token that names no policies.
        #[serde(default)]
        #[schema(value_type = Option<bool>)]
        every_token: bool = text.every_token,
        /// Allowed HTTP methods; default all. To see them, the server decrypts TLS.
        #[serde(default)]
        #[schema(value_type = Option<Vec<String>>, max_items = 32, example = json!(["GET"]))]
        methods: Vec<String> = text.methods.clone(),
        /// Allowed paths of requests; one that ends in `/` allows everything below it. Default all.
        #[serde(default)]
        #[schema(value_type = Option<Vec<String>>, max_items = 100, example = json!(["/v1/"]))]
        paths: Vec<String> = text.paths.clone(),
        /// Requests per minute of one owner; 0 for no limit.
        #[serde(default)]
        #[schema(value_type = Option<u64>, maximum = 4_294_967_295_u64)]
        requests_per_minute: u32 = text.requests_per_minute,
        /// Bytes per minute of one owner, sent and received together; 0 for no limit.
        #[serde(default)]
        #[schema(value_type = Option<u64>, maximum = 4_294_967_295_u64)]
        bytes_per_minute: u32 = text.bytes_per_minute,
    }

    /// A policy in force.
    pub struct PolicyResult((policies, policy): (&Policies, &Policy)) {
        #[schema(example = "pypi")]
        name: String = policy.name.clone(),
        /// Whether it comes from the server's settings, so that it cannot be changed here.
        is_configured: bool = policies.is_configured(&policy.name),
        policy: PolicyBody = (&policy.text).into(),
    }

    /// The policies in force.
    pub struct PolicyList(policies: &Policies) {
        policies: Vec<PolicyResult> = policies.all().iter().map(|policy| (policies, &**policy).into()).collect(),
    }
}

impl PolicyBody {
    /// # Errors
    /// [`InvalidArgument`](crate::domain::error::Code::InvalidArgument) for an address that is none.
    pub fn text(self) -> Result<PolicyText, Failure> {
        let address = |text: &String| {
            let why = || format!("`{}` is no address", shown(text));
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

#[cfg(test)]
mod tests {
    use utoipa::PartialSchema as _;

    use super::*;

    #[test]
    fn document_has_the_bounds_of_the_lists_of_a_policy() {
        let document = serde_json::to_value(PolicyBody::schema()).expect("JSON");
        for (list, _, most) in PolicyText::default().lists() {
            assert_eq!(document["properties"][list]["maxItems"], most, "{list}");
        }
    }
}
