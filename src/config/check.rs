//! Rules for values beyond their kind (ranges, secrets, paths, words), and what follows from several settings or from
//! the text of one.

use std::{fmt::Display, net::Ipv6Addr, ops::RangeInclusive, path::Path};

use percent_encoding::utf8_percent_encode;
use secrecy::{ExposeSecret as _, SecretString};

use super::{
    BaseUrl, Config, ConfigError, RunLimits, Setting, telemetry,
    value::{check_secret, is_weak},
};
use crate::domain::{AllowedVariables, Limits, address::networks, path::RESERVED_IN_PATH, text::items};

/// Longest life of a link, in seconds: seven days, as for signed links elsewhere (AWS Signature Version 4).
pub const URL_TTL_S_MAX: u64 = 7 * 86_400;

/// Checks one number of a section.
pub(super) fn range<T: PartialOrd + Display>(
    section: &'static str,
    key: &'static str,
    value: &T,
    range: &RangeInclusive<T>,
) -> Result<(), ConfigError> {
    let name = Setting { section, key, default: "", doc: "" }.name();
    let why = format!("{name} must be from {} to {} (it is {value}).", range.start(), range.end());
    ensure(range.contains(value), why)
}

fn is_origin(text: &str) -> bool {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    host.is_some_and(|host| host.parse::<http::uri::Authority>().is_ok() && !host.contains('@'))
}

pub(super) fn ensure(holds: bool, why: impl Into<String>) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError(why.into())) }
}

/// Checks a setting that is one of some words.
pub(super) fn one_of(name: &str, value: &str, [first, second]: [&str; 2]) -> Result<(), ConfigError> {
    ensure(value == first || value == second, format!("{name} must be `{first}` or `{second}`."))
}

/// Checks a setting that is a list of some words, with commas.
pub(super) fn list_of(name: &str, value: &str, words: &[&str]) -> Result<(), ConfigError> {
    let is_of = value.split(',').all(|word| words.contains(&word.trim()));
    ensure(is_of, format!("{name} must be a list out of: {}.", words.join(", ")))
}

/// Checks a setting that names a file, where it is set.
pub(super) fn absolute(name: &str, file: &str) -> Result<(), ConfigError> {
    let fits = file.is_empty() || Path::new(file).is_absolute();
    ensure(fits, format!("{name} must be the absolute path of a file."))
}

impl Config {
    /// Returns the first broken rule.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let api_token = self.api_token.expose().expose_secret();
        check_secret("MCP_API_TOKEN", api_token)?;
        for secret in self.file_secrets() {
            check_secret("FILE_SECRET", secret.expose_secret())?;
            let why = "FILE_SECRET is the same text as MCP_API_TOKEN: make another with `openssl rand -hex 32`, so \
                       that one can be changed without the other.";
            ensure(secret.expose_secret() != api_token, why)?;
        }
        let why = "SANDBOX_ROOT must be an absolute path of a folder of its own.";
        ensure(self.root.is_absolute() && self.root != Path::new("/"), why)?;
        self.check_ranges()?;
        self.shared_folders()?;
        self.check_engine()?;
        self.skills_root()?;
        self.check_secrets()?;
        self.check_tools()?;
        self.package_hosts()?;
        let why = "SANDBOX_ENV__ALLOWED must be names of variables separated by commas, such as API_KEY,TZ.";
        ensure(AllowedVariables::parse(&self.env.allowed).is_some(), why)?;
        one_of("SANDBOX_RUNS__ON_DISCONNECT", &self.runs.on_disconnect, ["cancel", "detach"])?;
        let groups = ["run", "files", "session", "coderunner", "ipybox", "web", "skills", "tools", "check"];
        list_of("SANDBOX_MCP__TOOLS", &self.mcp.tools, &groups)?;
        one_of("SANDBOX_MCP__NAMES", &self.mcp.names, ["underscore", "dotted"])?;
        one_of("SANDBOX_LOG__FORMAT", &self.log.format, ["text", "json"])?;
        telemetry::filter(&self.log.level)?;
        let why = "SANDBOX_METRICS__HTTP_ADDR must be an address such as 127.0.0.1:9090.";
        ensure(self.metrics.http_addr.is_empty() || self.metrics.addr().is_some(), why)?;
        let why = "SANDBOX_SERVER__CORS_ORIGINS must be origins such as https://app.example.org, without a path.";
        ensure(items(&self.server.cors_origins).all(is_origin), why)?;
        let why = "SANDBOX_SERVER__TRUSTED_PROXIES must be addresses or networks such as 127.0.0.1,172.16.0.0/12.";
        ensure(networks(&self.server.trusted_proxies).is_some(), why)?;
        self.check_peer()?;
        self.check_sign_in()?;
        self.traces.collector()?;
        self.files_base_url()?;
        let audit = Path::new(&self.audit.file);
        // A file in the root would be taken for a conversation or deleted with one.
        let apart = audit.is_absolute() && !audit.starts_with(&self.root);
        let why = "SANDBOX_AUDIT__FILE must be an absolute path of a file that is not below SANDBOX_ROOT.";
        ensure(self.audit.file.is_empty() || apart, why)
    }

    fn check_peer(&self) -> Result<(), ConfigError> {
        let url = self.peer_url();
        if url.is_empty() {
            return Ok(());
        }
        let why = "SANDBOX_SERVER__PEER_URL must be an address such as http://10.0.0.7:8080, without a path.";
        ensure(url.starts_with("http://") && is_origin(&url), why)?;
        let why = "SANDBOX_SERVER__PEER_URL needs a DATABASE_URL of PostgreSQL, which all servers share.";
        ensure(self.database_url().expose_secret().starts_with("postgres"), why)
    }

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
        format!("sqlite://{}/.state/sandbox.db", utf8_percent_encode(&root, RESERVED_IN_PATH)).into()
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
