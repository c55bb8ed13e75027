//! What follows from several settings, or from the text of one.

use std::net::Ipv6Addr;

use percent_encoding::{AsciiSet, utf8_percent_encode};
use secrecy::{ExposeSecret as _, SecretString};

use super::{BaseUrl, Config, ConfigError, RunLimits, value::is_weak};
use crate::domain::{limits::Limits, path::RESERVED};

/// What is encoded in the address of a file.
const IN_ADDRESS: &AsciiSet = &RESERVED.remove(b'/');

impl Config {
    /// The names of secrets that are probably not random.
    pub fn weak_secrets(&self) -> Vec<&'static str> {
        let token = is_weak(self.api_token.expose().expose_secret()).then_some("MCP_API_TOKEN");
        let links = self.file_secrets().any(|secret| is_weak(secret.expose_secret())).then_some("FILE_SECRET");
        token.into_iter().chain(links).collect()
    }

    /// What links to files begin with.
    ///
    /// # Errors
    /// When it is no address, or not apart from that of the server.
    pub fn files_base_url(&self) -> Result<BaseUrl, ConfigError> {
        let own = &self.files.base_url;
        if own.is_empty() {
            return Ok(self.public_base_url.clone());
        }
        let url: BaseUrl = own.parse().map_err(|why| ConfigError(format!("SANDBOX_FILES__BASE_URL: {why}.")))?;
        if url.uri().host() == self.public_base_url.uri().host() || url.uri().path().len() > 1 {
            let why = "SANDBOX_FILES__BASE_URL must have another host name than PUBLIC_BASE_URL, and no path.";
            return Err(ConfigError(why.to_owned()));
        }
        Ok(url)
    }

    /// Where the database is. It may hold a password.
    pub fn database_url(&self) -> SecretString {
        let url = self.database_url.expose();
        if !url.expose_secret().is_empty() {
            return url.clone();
        }
        let root = self.root.display().to_string();
        format!("sqlite://{}/.state/sandbox.db", utf8_percent_encode(&root, IN_ADDRESS)).into()
    }

    /// How other servers reach this one. An IPv6 address gets its brackets here, since Kubernetes gives a pod's address
    /// without them.
    pub fn peer_url(&self) -> String {
        let url = &self.server.peer_url;
        let address = url.strip_prefix("http://").and_then(|address| address.rsplit_once(':'));
        match address.and_then(|(ip, port)| Some((ip.parse::<Ipv6Addr>().ok()?, port))) {
            Some((ip, port)) => format!("http://[{ip}]:{port}"),
            None => url.clone(),
        }
    }

    /// The secrets of links: the first signs, all verify.
    pub fn file_secrets(&self) -> impl Iterator<Item = SecretString> {
        self.file_secret.expose().expose_secret().split(',').map(|text| text.trim().into())
    }
}

impl RunLimits {
    pub fn limits(&self) -> Limits {
        Limits {
            cpu_millis: self.cpu_millis,
            memory_bytes: self.memory_bytes,
            wall_ms: self.wall_ms,
            processes_max: self.processes_max,
            open_files_max: self.open_files_max,
            file_bytes_max: self.file_bytes_max,
            output_bytes_max: self.output_bytes_max,
            output_kept_bytes: self.output_kept_bytes,
            tmp_bytes: self.tmp_bytes,
        }
    }
}
