//! Merges the sources, refuses what is unknown or wrong, and prints the result without secrets.

use std::path::PathBuf;

use figment::{
    Figment,
    providers::{Format, Serialized, Toml},
    value::{Dict, Map, Tag, Value},
};
use serde::{Deserialize, Serialize};

use super::{Admission, BindAddr, Config, ConfigError, Engine, Files, Log, NAMED, RunLimits, Secret, Server, settings};

/// Longest life of a link, in seconds: seven days, as for signed links elsewhere (AWS Signature Version 4).
pub const URL_TTL_S_MAX: u64 = 7 * 86_400;

/// Where settings are read from. The defaults are what the program does when nothing is said.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// `sandbox.toml`. A file that is named must exist; the default one may be absent.
    pub file: Option<PathBuf>,
    /// `.env`. The same rule.
    pub env_file: Option<PathBuf>,
    /// The process's environment.
    pub environment: Vec<(String, String)>,
    /// The command line.
    pub overrides: Overrides,
}

/// Settings given on the command line as `NAME=value`, with the names of the environment.
#[derive(Debug, Clone, Default)]
pub struct Overrides(pub Vec<(String, String)>);

/// The shape that every source is merged into. Everything is optional or has a default here; rules come afterwards.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    mcp_api_token: String,
    file_secret: String,
    sandbox_root: String,
    public_base_url: String,
    mcp_http_addr: String,
    docker_host: String,
    tunnel_token: String,
    server: Server,
    limits: RunLimits,
    engine: Engine,
    admission: Admission,
    files: Files,
    log: Log,
}

impl Default for Raw {
    fn default() -> Self {
        Self {
            mcp_api_token: String::new(),
            file_secret: String::new(),
            sandbox_root: "/var/sandboxes".to_owned(),
            public_base_url: "http://localhost:8080".to_owned(),
            mcp_http_addr: ":8080".to_owned(),
            docker_host: String::new(),
            tunnel_token: String::new(),
            server: Server::default(),
            limits: RunLimits::default(),
            engine: Engine::default(),
            admission: Admission::default(),
            files: Files::default(),
            log: Log::default(),
        }
    }
}

/// Reads and checks every setting.
///
/// # Errors
/// One sentence that names the setting and says what to do.
pub fn load(sources: &Sources) -> Result<Config, ConfigError> {
    merge(sources)?.check()
}

fn merge(sources: &Sources) -> Result<Raw, ConfigError> {
    let mut figment = Figment::from(Serialized::defaults(Raw::default()));
    for (path, named) in candidates(sources.file.as_ref(), "sandbox.toml") {
        if let Some(text) = read(&path, named)? {
            let dict = from_toml(&text, &path.display().to_string())?;
            figment = figment.merge(Serialized::defaults(dict));
        }
    }
    let mut pairs = Vec::new();
    for (path, named) in candidates(sources.env_file.as_ref(), ".env") {
        if let Some(text) = read(&path, named)? {
            let place = path.display().to_string();
            for item in dotenvy::from_read_iter(text.as_bytes()) {
                let pair = item.map_err(|_| {
                    ConfigError(format!("{place} has a line that is not `NAME=value`: correct or remove it."))
                })?;
                pairs.push((pair, place.clone()));
            }
        }
    }
    let environment = sources.environment.iter().cloned().map(|pair| (pair, "the environment".to_owned()));
    let flags = sources.overrides.0.iter().cloned().map(|pair| (pair, "the command line".to_owned()));
    pairs.extend(environment);
    let foreign_names_are_fine = pairs.len();
    pairs.extend(flags);
    for (index, ((name, value), place)) in pairs.into_iter().enumerate() {
        if let Some(dict) = from_pair(&name, &value, &place, index < foreign_names_are_fine)? {
            figment = figment.merge(Serialized::defaults(dict));
        }
    }
    figment.extract().map_err(|error| explain(&error))
}

fn candidates(named: Option<&PathBuf>, default: &str) -> [(PathBuf, bool); 1] {
    [named.map_or_else(|| (PathBuf::from(default), false), |path| (path.clone(), true))]
}

fn read(path: &PathBuf, must_exist: bool) -> Result<Option<String>, ConfigError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !must_exist => Ok(None),
        Err(error) => Err(ConfigError(format!("{} cannot be read: {error}.", path.display()))),
    }
}

/// A file's tables are sections; its other keys are names as in the environment.
fn from_toml(text: &str, place: &str) -> Result<Dict, ConfigError> {
    let figment = Figment::from(Toml::string(text));
    let parsed: Map<String, Value> =
        figment.extract().map_err(|error| ConfigError(format!("{place} is not valid TOML: {}.", error.kind)))?;
    let mut dict = Dict::new();
    for (key, value) in parsed {
        match value {
            Value::Dict(tag, keys) => {
                for inner in keys.keys() {
                    if find(&format!("SANDBOX_{key}__{inner}")).is_none() || inner.contains(char::is_uppercase) {
                        return Err(unknown(&format!("{key}.{inner}"), place));
                    }
                }
                if keys.is_empty() {
                    continue;
                }
                merge_into(&mut dict, &key, Value::Dict(tag, keys));
            }
            scalar => {
                let text = match &scalar {
                    Value::String(_, text) => text.clone(),
                    Value::Num(_, num) => num.to_actual_display(),
                    Value::Bool(_, flag) => flag.to_string(),
                    _ => return Err(ConfigError(format!("{place}: {key} must be a text, a number or a flag."))),
                };
                let pair = from_pair(&key, &text, place, false)?.unwrap_or_default();
                for (key, value) in pair {
                    merge_into(&mut dict, &key, value);
                }
            }
        }
    }
    Ok(dict)
}

trait ActualDisplay {
    fn to_actual_display(&self) -> String;
}

impl ActualDisplay for figment::value::Num {
    fn to_actual_display(&self) -> String {
        self.to_i128()
            .map(|n| n.to_string())
            .or_else(|| self.to_u128().map(|n| n.to_string()))
            .or_else(|| self.to_f64().map(|n| n.to_string()))
            .unwrap_or_default()
    }
}

fn merge_into(dict: &mut Dict, key: &str, value: Value) {
    match (dict.get_mut(key), value) {
        (Some(Value::Dict(_, have)), Value::Dict(_, more)) => have.extend(more),
        (_, value) => {
            dict.insert(key.to_owned(), value);
        }
    }
}

/// One `NAME=value`. `None` for a name that is not ours, where such names may stand.
fn from_pair(name: &str, value: &str, place: &str, foreign_ok: bool) -> Result<Option<Dict>, ConfigError> {
    if NAMED.iter().any(|setting| setting.key == name) {
        let text = Value::String(Tag::Default, value.trim().to_owned());
        return Ok(Some(Dict::from([(name.to_lowercase(), text)])));
    }
    let Some(setting) = find(name) else {
        return if foreign_ok && !name.starts_with("SANDBOX_") { Ok(None) } else { Err(unknown(name, place)) };
    };
    // An empty value means «not set»: compose files hand over every name they know.
    if value.is_empty() {
        return Ok(None);
    }
    let value = match default_of(&setting) {
        Some(Value::String(..)) => Value::String(Tag::Default, value.to_owned()),
        _ => number(value.trim()),
    };
    let inner = Dict::from([(setting.key.to_owned(), value)]);
    Ok(Some(Dict::from([(setting.section.to_owned(), Value::Dict(Tag::Default, inner))])))
}

fn number(text: &str) -> Value {
    text.parse::<i64>().map_or_else(|_| Value::from(text), Value::from)
}

fn find(name: &str) -> Option<super::Setting> {
    let upper = name.to_uppercase();
    settings().find(|setting| !setting.section.is_empty() && setting.name() == upper)
}

fn default_of(setting: &super::Setting) -> Option<Value> {
    Value::serialize(Raw::default()).ok()?.find(&format!("{}.{}", setting.section, setting.key))
}

fn unknown(name: &str, place: &str) -> ConfigError {
    let shown: String = name.chars().take(80).collect();
    ConfigError(format!(
        "`{}` in {place} is not a setting: correct or remove it; `mcp-sandbox-server config print` lists every setting.",
        shown.escape_debug()
    ))
}

fn explain(error: &figment::Error) -> ConfigError {
    let path = error.path.join(".");
    let name = match error.path.as_slice() {
        [section, key] => format!("SANDBOX_{}__{}", section.to_uppercase(), key.to_uppercase()),
        [key] => key.to_uppercase(),
        _ => path,
    };
    match &error.kind {
        figment::error::Kind::UnknownField(field, _) => unknown(field, "the settings"),
        kind => ConfigError(format!("{name} has a wrong value: {kind}.")),
    }
}

impl Raw {
    fn check(self) -> Result<Config, ConfigError> {
        let api_token = Secret::parse("MCP_API_TOKEN", &self.mcp_api_token)?;
        let file_secrets: Vec<Secret> = self
            .file_secret
            .split(',')
            .map(|text| Secret::parse("FILE_SECRET", text.trim()))
            .collect::<Result<_, _>>()?;
        if file_secrets.iter().any(|secret| secret.is_same(&api_token)) {
            return Err(ConfigError(
                "FILE_SECRET is the same text as MCP_API_TOKEN: make another with `openssl rand -hex 32`, so that \
                 one can be changed without the other."
                    .to_owned(),
            ));
        }
        let root = PathBuf::from(&self.sandbox_root);
        if !root.is_absolute() || root == std::path::Path::new("/") {
            return Err(ConfigError("SANDBOX_ROOT must be an absolute path of a folder of its own.".to_owned()));
        }
        let config = Config {
            api_token,
            file_secrets,
            root,
            public_base_url: base_url(&self.public_base_url)?,
            http_addr: BindAddr::parse(&self.mcp_http_addr)?,
            docker_host: (!self.docker_host.is_empty()).then_some(self.docker_host),
            server: self.server,
            limits: self.limits,
            engine: self.engine,
            admission: self.admission,
            files: self.files,
            log: self.log,
        };
        config.check_ranges()?;
        Ok(config)
    }
}

fn base_url(text: &str) -> Result<http::Uri, ConfigError> {
    let error = || {
        ConfigError(
            "PUBLIC_BASE_URL must be an address such as https://sandbox.example.com, without query or fragment."
                .to_owned(),
        )
    };
    let uri: http::Uri = text.trim_end_matches('/').parse().map_err(|_| error())?;
    let http = matches!(uri.scheme_str(), Some("http" | "https"));
    if !http || uri.host().is_none_or(str::is_empty) || uri.query().is_some() || text.contains(['#', '@']) {
        return Err(error());
    }
    Ok(uri)
}

impl Config {
    fn check_ranges(&self) -> Result<(), ConfigError> {
        let limits = &self.limits;
        let within = [
            ("SANDBOX_LIMITS__CPU_MILLIS", u64::from(limits.cpu_millis), 10, 1_000_000),
            ("SANDBOX_LIMITS__MEMORY_BYTES", limits.memory_bytes, 16 << 20, 1 << 50),
            ("SANDBOX_LIMITS__WALL_MS", limits.wall_ms, 100, 24 * 3_600_000),
            ("SANDBOX_LIMITS__PROCESSES_MAX", limits.processes_max.into(), 8, 1 << 22),
            ("SANDBOX_LIMITS__OPEN_FILES_MAX", limits.open_files_max.into(), 32, 1 << 20),
            ("SANDBOX_LIMITS__FILE_BYTES_MAX", limits.file_bytes_max, 1, 1 << 50),
            ("SANDBOX_LIMITS__OUTPUT_BYTES_MAX", limits.output_bytes_max, 1024, 1 << 40),
            ("SANDBOX_LIMITS__OUTPUT_KEPT_BYTES", limits.output_kept_bytes, 1024, 64 << 20),
            ("SANDBOX_LIMITS__TMP_BYTES", limits.tmp_bytes, 1 << 20, 1 << 40),
            ("SANDBOX_LIMITS__PROGRAM_BYTES_MAX", limits.program_bytes_max, 1, 64 << 20),
            ("SANDBOX_SERVER__BODY_BYTES_MAX", self.server.body_bytes_max, 4096, 256 << 20),
            ("SANDBOX_SERVER__HEADER_READ_MS", self.server.header_read_ms, 100, 600_000),
            ("SANDBOX_SERVER__BODY_READ_MS", self.server.body_read_ms, 100, 3_600_000),
            ("SANDBOX_SERVER__CONNECTIONS_MAX", self.server.connections_max.into(), 1, 1 << 20),
            ("SANDBOX_SERVER__SHUTDOWN_GRACE_MS", self.server.shutdown_grace_ms, 0, 3_600_000),
            ("SANDBOX_ADMISSION__SLOTS", self.admission.slots.into(), 0, 10_000),
            ("SANDBOX_ADMISSION__QUEUE_MAX", self.admission.queue_max.into(), 0, 1 << 20),
            ("SANDBOX_ADMISSION__QUEUE_WAIT_MS", self.admission.queue_wait_ms, 0, 3_600_000),
            ("SANDBOX_FILES__URL_TTL_S", self.files.url_ttl_s, 1, URL_TTL_S_MAX),
            ("SANDBOX_FILES__LISTED_MAX", self.files.listed_max.into(), 1, 10_000),
            ("SANDBOX_FILES__DEPTH_MAX", self.files.depth_max.into(), 1, 32),
            ("SANDBOX_FILES__READ_BYTES_MAX", self.files.read_bytes_max, 1, 64 << 20),
            ("SANDBOX_FILES__WRITE_BYTES_MAX", self.files.write_bytes_max, 1, 256 << 20),
            ("SANDBOX_FILES__IMAGE_BYTES_MAX", self.files.image_bytes_max, 0, 16 << 20),
            ("SANDBOX_FILES__IMAGES_MAX", self.files.images_max.into(), 0, 64),
            ("SANDBOX_ENGINE__RUNNER_UID", self.engine.runner_uid.into(), 1, u64::from(u32::MAX - 1)),
        ];
        for (name, value, low, high) in within {
            if !(low..=high).contains(&value) {
                return Err(ConfigError(format!("{name} is {value}: it must be from {low} to {high}.")));
            }
        }
        if !matches!(self.log.format.as_str(), "text" | "json") {
            return Err(ConfigError("SANDBOX_LOG__FORMAT must be `text` or `json`.".to_owned()));
        }
        Ok(())
    }

    /// The merged settings as `NAME=value` lines. A secret is shown as `(set)`.
    pub fn print(&self) -> String {
        let raw = Raw {
            mcp_api_token: "(set)".to_owned(),
            file_secret: vec!["(set)"; self.file_secrets.len()].join(","),
            sandbox_root: self.root.display().to_string(),
            public_base_url: self.public_base_url.to_string().trim_end_matches('/').to_owned(),
            mcp_http_addr: self.http_addr.to_string(),
            docker_host: self.docker_host.clone().unwrap_or_default(),
            tunnel_token: String::new(),
            server: self.server.clone(),
            limits: self.limits.clone(),
            engine: self.engine.clone(),
            admission: self.admission.clone(),
            files: self.files.clone(),
            log: self.log.clone(),
        };
        let lines: Vec<String> = lines(&raw)
            .filter(|(name, ..)| name != "TUNNEL_TOKEN")
            .map(|(name, value, _)| format!("{name}={value}"))
            .collect();
        lines.join("\n") + "\n"
    }
}

/// Every setting's name, value and meaning.
fn lines(raw: &Raw) -> impl Iterator<Item = (String, String, &'static str)> {
    let root = Value::serialize(raw).unwrap_or_else(|_| Value::from(""));
    settings().map(move |setting| {
        let path = if setting.section.is_empty() {
            setting.key.to_lowercase()
        } else {
            format!("{}.{}", setting.section, setting.key)
        };
        let value = match root.clone().find(&path) {
            Some(Value::String(_, text)) => text,
            Some(Value::Num(_, num)) => num.to_actual_display(),
            Some(Value::Bool(_, flag)) => flag.to_string(),
            _ => String::new(),
        };
        (setting.name(), value, setting.doc)
    })
}

/// The text of `.env.example`: every setting with its default, those that have one commented out.
pub fn example() -> String {
    let mut text = String::from(
        "# Settings of the MCP code sandbox. Copy to .env and fill in the two secrets, or let ./quickstart.sh do it.\n\
         # A line that is commented out shows the default.\n",
    );
    for (name, value, doc) in lines(&Raw::default()) {
        let mark = if matches!(name.as_str(), "MCP_API_TOKEN" | "FILE_SECRET") { "" } else { "# " };
        text.push_str(&format!("\n# {doc}\n{mark}{name}={value}\n"));
    }
    text
}

/// The settings as a Markdown table.
pub fn table() -> String {
    let mut text = String::from("| name | default | meaning |\n| --- | --- | --- |\n");
    for (name, value, doc) in lines(&Raw::default()) {
        let value = match (name.as_str(), value.as_str()) {
            ("MCP_API_TOKEN" | "FILE_SECRET", _) => "none, required".to_owned(),
            (_, "") => "none".to_owned(),
            (_, value) => format!("`{value}`"),
        };
        text.push_str(&format!("| `{name}` | {value} | {doc} |\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(environment: &[(&str, &str)]) -> Sources {
        let mut pairs = vec![("MCP_API_TOKEN", "0123456789abcdef"), ("FILE_SECRET", "fedcba9876543210")];
        pairs.extend(environment);
        Sources {
            environment: pairs.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
            ..Sources::default()
        }
    }

    fn refused(environment: &[(&str, &str)]) -> String {
        load(&sources(environment)).expect_err("refused").0
    }

    #[test]
    fn the_defaults_are_the_contracts() {
        let config = load(&sources(&[("PATH", "/bin"), ("LANG", "")])).expect("settings");
        assert_eq!(config.root, PathBuf::from("/var/sandboxes"));
        assert_eq!(config.http_addr, BindAddr::AllInterfaces { port: 8080 });
        assert_eq!(config.limits.limits(), Limits::default());
        assert_eq!(
            (config.limits.cpu_millis, config.limits.memory_bytes, config.limits.wall_ms),
            (500, 268_435_456, 30_000)
        );
        assert_eq!(config.files.url_ttl_s, 86_400);
        assert_eq!(config.engine.runner_uid, 1000);
    }

    use crate::nouns::limits::Limits;

    #[test]
    fn later_sources_win() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.toml");
        std::fs::write(&file, "SANDBOX_ROOT = \"/srv/a\"\nSANDBOX_LIMITS__CPU_MILLIS = 900\n[limits]\nwall_ms = 1000\nmemory_bytes = 33554432\n")
            .expect("written");
        let env_file = folder.path().join("env");
        std::fs::write(&env_file, "SANDBOX_LIMITS__WALL_MS=2000\nUNRELATED=1\nSANDBOX_FILES__LISTED_MAX=7\n")
            .expect("written");
        let mut all = sources(&[("SANDBOX_LIMITS__WALL_MS", "3000"), ("SANDBOX_ADMISSION__SLOTS", "")]);
        all.file = Some(file);
        all.env_file = Some(env_file);
        all.overrides = Overrides(vec![("SANDBOX_LIMITS__MEMORY_BYTES".to_owned(), "67108864".to_owned())]);
        let config = load(&all).expect("settings");
        assert_eq!(config.root, PathBuf::from("/srv/a"));
        assert_eq!(
            (config.limits.wall_ms, config.limits.memory_bytes, config.limits.cpu_millis),
            (3000, 67_108_864, 900)
        );
        assert_eq!(config.files.listed_max, 7);
    }

    #[test]
    fn unknown_and_wrong_settings_are_named() {
        for (name, value) in [
            ("SANDBOX_LIMITS__WALLMS", "1"),
            ("SANDBOX_LIMIT__WALL_MS", "1"),
            ("SANDBOX_ROOTS", "/x"),
            ("SANDBOX_", "1"),
            ("SANDBOX_LIMITS__WALL_MS", "soon"),
            ("SANDBOX_LIMITS__WALL_MS", "-1"),
            ("SANDBOX_LIMITS__WALL_MS", "1.5"),
            ("SANDBOX_LIMITS__WALL_MS", "0"),
            ("SANDBOX_ENGINE__RUNNER_UID", "0"),
            ("SANDBOX_FILES__URL_TTL_S", "604801"),
            ("SANDBOX_LOG__FORMAT", "xml"),
            ("SANDBOX_ROOT", "relative"),
            ("SANDBOX_ROOT", "/"),
            ("PUBLIC_BASE_URL", "sandbox.test"),
            ("PUBLIC_BASE_URL", "https://u@sandbox.test"),
            ("PUBLIC_BASE_URL", "https://sandbox.test?x"),
            ("MCP_HTTP_ADDR", "8080"),
            ("MCP_API_TOKEN", "short"),
            ("FILE_SECRET", "fedcba9876543210,short"),
            ("FILE_SECRET", "0123456789abcdef"),
        ] {
            let error = refused(&[(name, value)]);
            assert!(error.contains(name), "{name}={value}: {error}");
        }
        for (text, part) in [
            ("[limits]\nwallms = 1", "limits.wallms"),
            ("[limit]\nwall_ms = 1", "limit.wall_ms"),
            ("root = \"/x\"", "root"),
            ("PATH = \"/x\"", "PATH"),
            ("[limits]\nwall_ms = \"x\"", "SANDBOX_LIMITS__WALL_MS"),
            ("= 1", "TOML"),
            ("SANDBOX_ROOT = [1]", "SANDBOX_ROOT"),
        ] {
            let folder = tempfile::tempdir().expect("a folder");
            let file = folder.path().join("a.toml");
            std::fs::write(&file, text).expect("written");
            let error = load(&Sources { file: Some(file), ..sources(&[]) }).expect_err(text).0;
            assert!(error.contains(part), "{text}: {error}");
        }
        let flag = Overrides(vec![("PATH".to_owned(), "/x".to_owned())]);
        assert!(load(&Sources { overrides: flag, ..sources(&[]) }).is_err());
        let absent = Sources { file: Some("/nonexistent/x.toml".into()), ..sources(&[]) };
        assert!(load(&absent).expect_err("absent").0.contains("/nonexistent/x.toml"));
    }

    #[test]
    fn a_print_shows_every_setting_and_no_secret() {
        let config = load(&sources(&[("SANDBOX_LIMITS__WALL_MS", "1234")])).expect("settings");
        let text = config.print() + &format!("{config:?}");
        assert!(text.contains("SANDBOX_LIMITS__WALL_MS=1234") && text.contains("MCP_API_TOKEN=(set)"));
        assert!(!text.contains("0123456789abcdef") && !text.contains("fedcba9876543210"), "{text}");
        for setting in settings().filter(|s| s.key != "TUNNEL_TOKEN") {
            assert!(text.contains(&format!("{}=", setting.name())), "{}", setting.name());
        }
    }

    #[test]
    fn the_token_may_look_like_a_number_and_secrets_rotate() {
        let config = load(&sources(&[
            ("MCP_API_TOKEN", "12345678901234567890"),
            ("FILE_SECRET", "fedcba9876543210, 0987654321fedcba"),
        ]))
        .expect("settings");
        assert_eq!(config.file_secrets.len(), 2);
    }
}
