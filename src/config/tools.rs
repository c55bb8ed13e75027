//! The section whose keys the operator chooses: MCP servers whose tools programs may call. A server is a table in
//! `sandbox.toml`; its secret is in a file, or in the environment, and nothing shows it.

use secrecy::{ExposeSecret as _, SecretString};

use super::{
    Config, ConfigError, Setting,
    mounts::any_key,
    secrets::{SecretKeys, WithSecret},
    section::section,
};
use crate::domain::tools::{ServerText, ToolServer};

/// MCP servers whose tools programs may call.
pub(super) const TOOLS: Setting = any_key(
    "tools",
    "The secret of the tool server [tools.<name>] of sandbox.toml, where that has no secret_file: it stands for \
     {secret} in the server's headers and variables (docs/tools.md).",
);

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

impl SecretKeys for ServerText {
    const FILE: &'static str = "secret_file";
    const VALUE: &'static str = "secret";
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
        let one = |(name, setting): (&String, &WithSecret<ServerText>)| {
            let secret = setting.read().map_err(|why| refused(name, &why))?;
            Ok((server(name, setting)?, secret.expose().expose_secret().into()))
        };
        self.tools.iter().map(one).collect()
    }
}

fn server(name: &str, setting: &WithSecret<ServerText>) -> Result<ToolServer, ConfigError> {
    ToolServer::parse(name, &setting.text).map_err(|why| refused(name, &why))
}

fn refused(name: &str, why: &dyn std::fmt::Display) -> ConfigError {
    ConfigError(format!("[tools.{name}]: {why}."))
}
