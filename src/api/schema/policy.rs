//! Policies for the network access of programs, as operators see and write them.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::LanguageName;
use crate::domain::{
    error::Failure,
    network::{Policy, PolicyText},
};

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
