//! Merges the sources and refuses what is unknown or of the wrong kind. What a value may be is `check`'s affair.

use std::path::PathBuf;

use figment::{
    Figment,
    providers::{Format, Serialized, Toml},
    value::{Dict, Map, Tag, Value},
};
use serde::{Deserialize, Serialize};

use super::{
    Admission, Audit, Config, ConfigError, Engine, Files, Log, Metrics, NAMED, Quota, RunLimits, Runs, Server, Standby,
    Traces, settings,
};

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
pub(super) struct Raw {
    pub mcp_api_token: String,
    pub file_secret: String,
    pub sandbox_root: String,
    pub public_base_url: String,
    pub mcp_http_addr: String,
    pub docker_host: String,
    pub tunnel_token: String,
    pub server: Server,
    pub limits: RunLimits,
    pub engine: Engine,
    pub admission: Admission,
    pub standby: Standby,
    pub runs: Runs,
    pub files: Files,
    pub quota: Quota,
    pub metrics: Metrics,
    pub audit: Audit,
    pub traces: Traces,
    pub log: Log,
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
            standby: Standby::default(),
            runs: Runs::default(),
            files: Files::default(),
            quota: Quota::default(),
            metrics: Metrics::default(),
            audit: Audit::default(),
            traces: Traces::default(),
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

pub(super) trait ActualDisplay {
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
        Some(Value::Bool(..)) => value.trim().parse::<bool>().map_or_else(|_| Value::from(value), Value::from),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::limits::Limits;

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
        assert_eq!(config.http_addr, crate::config::BindAddr::AllInterfaces { port: 8080 });
        assert_eq!(config.limits.limits(), Limits::default());
        assert_eq!(
            (config.limits.cpu_millis, config.limits.memory_bytes, config.limits.wall_ms),
            (500, 268_435_456, 30_000)
        );
        assert_eq!(config.files.url_ttl_s, 86_400);
        assert_eq!(config.engine.runner_uid, 1000);
    }

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
            ("SANDBOX_RUNS__ON_DISCONNECT", "leave"),
            ("SANDBOX_RUNS__WAIT_S_DEFAULT", "3601"),
            ("SANDBOX_ROOT", "relative"),
            ("SANDBOX_ROOT", "/"),
            ("PUBLIC_BASE_URL", "sandbox.test"),
            ("PUBLIC_BASE_URL", "https://u@sandbox.test"),
            ("PUBLIC_BASE_URL", "https://sandbox.test?x"),
            ("MCP_HTTP_ADDR", "8080"),
            ("SANDBOX_TRACES__OTLP_ENDPOINT", "https://127.0.0.1:4318"),
            ("SANDBOX_TRACES__OTLP_ENDPOINT", "127.0.0.1:4318"),
            ("SANDBOX_TRACES__OTLP_HEADERS", "api-key"),
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
        let headers = ("SANDBOX_TRACES__OTLP_HEADERS", "api-key=a-secret-of-the-collector");
        let config = load(&sources(&[("SANDBOX_LIMITS__WALL_MS", "1234"), headers])).expect("settings");
        let text = config.print() + format!("{config:?}").as_str();
        assert!(text.contains("SANDBOX_LIMITS__WALL_MS=1234") && text.contains("MCP_API_TOKEN=(set)"));
        assert!(text.contains("SANDBOX_TRACES__OTLP_HEADERS=(set)") && !text.contains("a-secret-of"), "{text}");
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
