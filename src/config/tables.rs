//! The tables of `sandbox.toml` whose keys the operator chooses: policies for the network access of programs, secrets
//! that programs use without seeing their values, and MCP servers whose tools programs may call. A policy may also be
//! its hosts alone, as a text. The value of a secret, and that of a server, is in a file, or in the environment, and
//! nothing shows it.

use std::{fs::File, io::Read as _};

use secrecy::{ExposeSecret as _, SecretString};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, DeserializeOwned},
};
use serde_json::Value as Json;

use super::{Config, ConfigError, Secret as Value, absolute, any_keys, section};
use crate::domain::{
    network::{Policy, PolicyText, Secret, SecretRule, SecretText},
    text::items,
    tools::{ServerText, ToolServer},
};

/// How much of a file of a value is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

any_keys! {
    /// Hosts that programs of every token may reach, comma separated, such as `pypi.org,*.example.com:8443`. As a table
    /// in sandbox.toml it also has ports, languages, rules for requests, rates, and the tokens that it is for
    /// (docs/network.md). Without any, programs have no network.
    NETWORK = "network",
    /// The value of the secret [secrets.<name>] of sandbox.toml, where that has no value_file: the server puts it into
    /// requests of programs, which have a placeholder (docs/network.md).
    SECRETS = "secrets",
    /// The secret of the tool server [tools.<name>] of sandbox.toml, where that has no secret_file: it stands for
    /// {secret} in the server's headers and variables (docs/tools.md).
    TOOLS = "tools",
}

section! {
    /// Connections of programs whose TLS the server opens.
    pub struct Opened("opened") {
        /// A PEM file of certificate authorities that are trusted for hosts where the server decrypts the TLS of
        /// programs, in addition to the roots of Mozilla and of the system.
        ca_file: String = String::new(),
    }
}

section! {
    /// Calls of tools by programs.
    pub struct ToolCalls("tool_calls") {
        /// How long a call waits for a person's answer to a question about it, in seconds. The program's time limit
        /// does not run meanwhile.
        ask_s: u64 = 300 => 1..=1800,
        /// Calls of one run or cell; more are refused.
        per_run_max: u32 = 10_000 => 1..=1_000_000,
        /// Maximum number of tool servers that run in sandboxes of their own at once.
        sandboxes_max: usize = 16 => 0..=1000,
        /// Where commands of tool servers are looked for, and the PATH that they get.
        path: String = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
    }
}

/// A policy as it is written; shown as its hosts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkPolicy(PolicyText);

impl<'de> Deserialize<'de> for NetworkPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match Json::deserialize(deserializer)? {
            Json::String(hosts) => {
                let hosts = items(&hosts).map(str::to_owned).collect();
                PolicyText { hosts, every_token: true, ..PolicyText::default() }
            }
            table => serde_json::from_value(table).map_err(|error| wrong::<D::Error>(&error))?,
        };
        Ok(Self(text))
    }
}

impl Serialize for NetworkPolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.hosts.join(","))
    }
}

/// A table with a secret in it, as it is written.
#[derive(Debug, Clone, Default)]
pub struct WithSecret<T> {
    /// Not beside `value`.
    file: String,
    value: Value,
    pub(super) text: T,
}

/// What the two keys of a secret are called in a table.
pub trait SecretKeys {
    const FILE: &'static str;
    const VALUE: &'static str;
}

impl SecretKeys for SecretText {
    const FILE: &'static str = "value_file";
    const VALUE: &'static str = "value";
}

impl SecretKeys for ServerText {
    const FILE: &'static str = "secret_file";
    const VALUE: &'static str = "secret";
}

impl<'de, T: SecretKeys + DeserializeOwned> Deserialize<'de> for WithSecret<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut table = serde_json::Map::deserialize(deserializer)?;
        let mut taken = |key: &str| match table.remove(key) {
            None => Ok(String::new()),
            Some(Json::String(text)) => Ok(text),
            Some(Json::Number(number)) => Ok(number.to_string()),
            Some(_) => Err(<D::Error as de::Error>::custom(format!("`{key}` must be a text"))),
        };
        let (file, Ok(value)) = (taken(T::FILE)?, taken(T::VALUE)?.parse());
        let text = serde_json::from_value(Json::Object(table)).map_err(|error| wrong::<D::Error>(&error))?;
        Ok(Self { file, value, text })
    }
}

/// Shows the secret, which is shown as `(set)`.
impl<T> Serialize for WithSecret<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.value)
    }
}

impl<T: SecretKeys> WithSecret<T> {
    /// The secret out of its file, where one is named; otherwise its value, which may not be set.
    pub(super) fn read(&self) -> Result<Value, String> {
        let Self { file, value, .. } = self;
        if file.is_empty() {
            return Ok(value.clone());
        }
        let key = T::FILE;
        if value.is_set() {
            return Err(format!("it has a value and a `{key}`: keep one of them"));
        }
        let mut text = String::new();
        let read = File::open(file)
            .and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text))
            .map_err(|error| format!("`{key}` {file} cannot be read: {error}"));
        let Ok(value) = text.trim().parse();
        read.map(|_| value)
    }
}

impl Config {
    /// The policies for the network access of programs.
    ///
    /// # Errors
    /// A sentence that names the setting.
    pub fn network_policies(&self) -> Result<Vec<Policy>, ConfigError> {
        let policy = |(name, written): (&String, &NetworkPolicy)| {
            Policy::parse(name, &written.0).map_err(|why| {
                ConfigError(format!("SANDBOX_NETWORK__{}: `{}`: {why}.", name.to_uppercase(), why.field()))
            })
        };
        self.network.iter().map(policy).collect()
    }

    /// Checks everything but the values.
    pub(super) fn check_secrets(&self) -> Result<(), ConfigError> {
        let policies = self.network_policies()?;
        for (name, setting) in &self.secrets {
            let rule = Self::rule(name, setting)?;
            rule.check_policies(&policies).map_err(|why| bad_secret(name, &why))?;
        }
        absolute("SANDBOX_OPENED__CA_FILE", &self.opened.ca_file)
    }

    fn rule(name: &str, setting: &WithSecret<SecretText>) -> Result<SecretRule, ConfigError> {
        SecretRule::parse(name, &setting.text).map_err(|why| bad_secret(name, &why))
    }

    /// The secrets with their values, which are read from their files now.
    ///
    /// # Errors
    /// A sentence that names the setting.
    pub fn secrets(&self) -> Result<Vec<Secret>, ConfigError> {
        let secret = |(name, setting): (&String, &WithSecret<SecretText>)| {
            let value = setting.read().map_err(|why| bad_secret(name, &why))?;
            if !value.is_set() {
                return Err(bad_secret(name, &"it has no value: set `value_file`, or this variable"));
            }
            let secret = Self::rule(name, setting)?.with(value.expose().expose_secret().into());
            secret.map_err(|why| bad_secret(name, &why))
        };
        self.secrets.iter().map(secret).collect()
    }

    /// More roots in PEM, for connections whose TLS the server opens.
    ///
    /// # Errors
    /// A sentence that names the setting.
    pub fn more_roots(&self) -> Result<Option<Vec<u8>>, ConfigError> {
        contents("SANDBOX_OPENED__CA_FILE", &self.opened.ca_file, |file| std::fs::read(file))
    }

    /// Checks everything but the secrets.
    pub(super) fn check_tools(&self) -> Result<(), ConfigError> {
        self.tools.iter().try_for_each(|(name, setting)| server(name, setting).map(drop))
    }

    /// The tool servers with their secrets, which are read from their files now.
    ///
    /// # Errors
    /// A sentence that names the setting.
    pub fn tool_servers(&self) -> Result<Vec<(ToolServer, SecretString)>, ConfigError> {
        let one = |(name, setting): (&String, &WithSecret<ServerText>)| {
            let secret = setting.read().map_err(|why| bad_server(name, &why))?;
            Ok((server(name, setting)?, secret.expose().expose_secret().into()))
        };
        self.tools.iter().map(one).collect()
    }
}

/// What is wrong with a table, without the value, which may be a secret.
fn wrong<E: de::Error>(error: &serde_json::Error) -> E {
    let text = error.to_string();
    E::custom(match text.rsplit_once(", expected ") {
        Some((found, expected)) if found.starts_with("invalid ") => {
            let kind = found.split(['"', '`']).next().unwrap_or_default().trim_end();
            format!("{kind}, expected {expected}")
        }
        _ => text,
    })
}

/// What is in the file that a setting names; nothing where it is not set.
pub(super) fn contents<T>(
    setting: &str,
    file: &str,
    read: impl FnOnce(&str) -> std::io::Result<T>,
) -> Result<Option<T>, ConfigError> {
    let read = (!file.is_empty()).then(|| read(file)).transpose();
    read.map_err(|error| ConfigError(format!("{setting} {file} cannot be read: {error}.")))
}

fn bad_secret(name: &str, why: &dyn std::fmt::Display) -> ConfigError {
    ConfigError(format!("SANDBOX_SECRETS__{}: {why}.", name.to_uppercase()))
}

fn server(name: &str, setting: &WithSecret<ServerText>) -> Result<ToolServer, ConfigError> {
    ToolServer::parse(name, &setting.text).map_err(|why| bad_server(name, &why))
}

fn bad_server(name: &str, why: &dyn std::fmt::Display) -> ConfigError {
    ConfigError(format!("[tools.{name}]: {why}."))
}
