//! The section whose keys the operator chooses: secrets that programs use without seeing their values. A secret is a
//! table in `sandbox.toml`; its value is in a file, or in the environment, and nothing shows it.

use std::{fs::File, io::Read as _};

use secrecy::ExposeSecret as _;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, DeserializeOwned},
};
use serde_json::Value as Json;

use super::{Config, ConfigError, Setting, mounts::any_key, section::section, value::Secret as Value};
use crate::domain::network::{Secret, SecretRule, SecretText};

/// How much of a file of a value is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Secrets that the server puts into requests of programs.
pub(super) const SECRETS: Setting = any_key(
    "secrets",
    "The value of the secret [secrets.<name>] of sandbox.toml, where that has no value_file: the server puts it \
     into requests of programs, which have a placeholder (docs/network.md).",
);

section! {
    /// Connections of programs whose TLS the server opens.
    pub struct Opened("opened") {
        /// A PEM file of certificate authorities that are trusted for hosts where the server decrypts the TLS of
        /// programs, in addition to the roots of Mozilla and of the system.
        ca_file: String = String::new(),
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

impl<'de, T: SecretKeys + DeserializeOwned> Deserialize<'de> for WithSecret<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut table = serde_json::Map::deserialize(deserializer)?;
        let (file, value) = taken_secret(&mut table, T::FILE, T::VALUE).map_err(de::Error::custom)?;
        let text = serde_json::from_value(Json::Object(table)).map_err(de::Error::custom)?;
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

/// Takes a secret out of a table: the name of its file, and its value.
fn taken_secret(table: &mut serde_json::Map<String, Json>, file: &str, value: &str) -> Result<(String, Value), String> {
    let mut taken = |key: &str| match table.remove(key) {
        None => Ok(String::new()),
        Some(Json::String(text)) => Ok(text),
        Some(Json::Number(number)) => Ok(number.to_string()),
        Some(_) => Err(format!("`{key}` must be a text")),
    };
    let (file, Ok(value)) = (taken(file)?, taken(value)?.parse());
    Ok((file, value))
}

impl Config {
    /// Checks everything but the values.
    pub(super) fn check_secrets(&self) -> Result<(), ConfigError> {
        let policies = self.network_policies()?;
        for (name, setting) in &self.secrets {
            let rule = Self::rule(name, setting)?;
            rule.check_policies(&policies).map_err(|why| refused(name, &why))?;
        }
        super::check::absolute("SANDBOX_OPENED__CA_FILE", &self.opened.ca_file)
    }

    fn rule(name: &str, setting: &WithSecret<SecretText>) -> Result<SecretRule, ConfigError> {
        SecretRule::parse(name, &setting.text).map_err(|why| refused(name, &why))
    }

    /// The secrets with their values, which are read from their files now.
    ///
    /// # Errors
    /// A sentence that names the setting.
    pub fn secrets(&self) -> Result<Vec<Secret>, ConfigError> {
        let secret = |(name, setting): (&String, &WithSecret<SecretText>)| {
            let value = setting.read().map_err(|why| refused(name, &why))?;
            if !value.is_set() {
                return Err(refused(name, &"it has no value: set `value_file`, or this variable"));
            }
            let secret = Self::rule(name, setting)?.with(value.expose().expose_secret().into());
            secret.map_err(|why| refused(name, &why))
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

fn refused(name: &str, why: &dyn std::fmt::Display) -> ConfigError {
    ConfigError(format!("SANDBOX_SECRETS__{}: {why}.", name.to_uppercase()))
}
