//! The section whose keys the operator chooses: policies for the network access of programs. A policy is a table in
//! `sandbox.toml`, or its hosts alone as a text.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

use super::{Config, ConfigError, Setting, mounts::any_key};
use crate::domain::network::{Policy, PolicyText};

/// Policies for the network access of programs.
pub(super) const NETWORK: Setting = any_key(
    "network",
    "Hosts that programs of every token may reach, comma separated, such as `pypi.org,*.example.com:8443`. As a \
     table in sandbox.toml it also has ports, languages, rules for requests, rates, and the tokens that it is for \
     (docs/network.md). Without any, programs have no network.",
);

/// A policy as it is written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkPolicy(PolicyText);

impl NetworkPolicy {
    /// Its hosts.
    pub(super) fn shown(&self) -> String {
        self.0.hosts.join(",")
    }
}

impl<'de> Deserialize<'de> for NetworkPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match Value::deserialize(deserializer)? {
            Value::String(hosts) => {
                let hosts = hosts.split(',').map(str::trim).filter(|host| !host.is_empty());
                PolicyText { hosts: hosts.map(str::to_owned).collect(), every_token: true, ..PolicyText::default() }
            }
            table => serde_json::from_value(table).map_err(de::Error::custom)?,
        };
        Ok(Self(text))
    }
}

impl Serialize for NetworkPolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.shown())
    }
}

impl Config {
    /// The policies for the network access of programs.
    ///
    /// # Errors
    /// A sentence that names the setting.
    pub fn network_policies(&self) -> Result<Vec<Policy>, ConfigError> {
        let policy = |(name, written): (&String, &NetworkPolicy)| {
            Policy::parse(name, &written.0)
                .map_err(|why| ConfigError(format!("SANDBOX_NETWORK__{}: {why}.", name.to_uppercase())))
        };
        self.network.iter().map(policy).collect()
    }
}
