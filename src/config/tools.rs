//! The section whose keys the operator chooses: MCP servers whose tools programs may call. A server is a table in
//! `sandbox.toml`; its secret is in a file, or in the environment, and nothing shows it.

use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value as Json;

use super::{
    Config, ConfigError, Setting,
    mounts::ANY_KEY,
    secrets::{read_secret, taken_secret},
    section::section,
    value::{Secret as Value, parsed, shown},
};
use crate::domain::tools::{ServerText, ToolServer};

/// MCP servers whose tools programs may call.
pub(super) const TOOLS: Setting = Setting {
    section: "tools",
    key: ANY_KEY,
    default: "",
    doc: "The secret of the tool server [tools.<name>] of sandbox.toml, where that has no secret_file: it stands for \
          {secret} in the server's headers and variables (docs/tools.md).",
};

section! {
    /// Calls of tools by programs.
    pub struct ToolCalls("tool_calls") {
        /// How long a call waits for a person who is asked about it, in seconds. The program's time limit does not run
        /// meanwhile.
        ask_s: u64 = 300 => 1..=1800,
        /// Calls of one run or cell; more are refused.
        per_run_max: u32 = 10_000 => 1..=1_000_000,
        /// Tool servers in sandboxes of their own at once.
        sandboxes_max: usize = 16 => 0..=1000,
        /// Where commands of tool servers are looked for, and the PATH that they get.
        path: String = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
    }
}

/// A tool server as it is written.
#[derive(Debug, Clone, Default)]
pub struct ToolServerSetting {
    secret_file: String,
    secret: Value,
    text: ServerText,
}

impl<'de> Deserialize<'de> for ToolServerSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut table = serde_json::Map::deserialize(deserializer)?;
        let (secret_file, secret) = taken_secret(&mut table, "secret_file", "secret").map_err(de::Error::custom)?;
        let text = serde_json::from_value(Json::Object(table)).map_err(de::Error::custom)?;
        Ok(Self { secret_file, secret, text })
    }
}

impl ToolServerSetting {
    /// Its secret, if that is none.
    pub(super) fn shown(&self) -> String {
        self.secret.to_string()
    }
}

impl Serialize for ToolServerSetting {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.shown())
    }
}

impl Config {
    /// Checks everything but the secrets.
    pub(super) fn check_tools(&self) -> Result<(), ConfigError> {
        self.tools.iter().try_for_each(|(name, setting)| server(name, setting).map(drop))
    }

    /// The tool servers with their secrets, which are read from their files now.
    ///
    /// # Errors
    /// A sentence that names the setting.
    pub fn tool_servers(&self) -> Result<Vec<(ToolServer, SecretString)>, ConfigError> {
        let one = |(name, setting): (&String, &ToolServerSetting)| {
            let ToolServerSetting { secret_file, secret, .. } = setting;
            let secret = read_secret(("secret_file", secret_file), secret).map_err(|why| refused(name, &why))?;
            Ok((server(name, setting)?, secret.expose().expose_secret().into()))
        };
        self.tools.iter().map(one).collect()
    }
}

fn server(name: &str, setting: &ToolServerSetting) -> Result<ToolServer, ConfigError> {
    ToolServer::parse(name, &setting.text).map_err(|why| refused(name, &why))
}

fn refused(name: &str, why: &dyn std::fmt::Display) -> ConfigError {
    ConfigError(format!("[tools.{name}]: {why}."))
}
