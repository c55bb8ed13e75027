//! Merges the sources, and refuses unknown names and values of the wrong kind. `check` knows the rules for values.

use std::{
    iter,
    path::{Path, PathBuf},
};

use figment::{
    Error, Figment, Metadata, Profile, Provider,
    error::Kind,
    providers::{Format, Serialized, Toml},
    value::{Dict, Map, Value},
};

use super::{ANY_KEY, Config, ConfigError, NAMED, Setting, settings};
use crate::domain::text::shown;

/// Where settings are read from.
#[derive(Debug, Clone)]
pub struct Sources {
    /// A file instead of `./sandbox.toml`. A file that is named must exist; the default one may be absent.
    pub file: Option<PathBuf>,
    /// A file instead of `./.env`. The same rule.
    pub env_file: Option<PathBuf>,
    /// The environment of the process.
    pub environment: Vec<(String, String)>,
    /// Pairs of the command line, with the names of the environment.
    pub overrides: Vec<(String, String)>,
    /// Pairs that count where no other source has the name; of the command.
    pub fallbacks: Vec<(String, String)>,
}

impl Sources {
    /// The environment alone: no file of the working directory is read.
    pub fn environment_only(environment: Vec<(String, String)>) -> Self {
        let no_file = Some(PathBuf::from("/dev/null"));
        Self { file: no_file.clone(), env_file: no_file, environment, overrides: Vec::new(), fallbacks: Vec::new() }
    }
}

/// Reads and checks every setting.
///
/// # Errors
/// One sentence that names the setting and says what to do.
pub fn load(sources: &Sources) -> Result<Config, ConfigError> {
    let figment = read_all(sources)?.into_iter().fold(Figment::new(), Figment::merge);
    let config: Config = figment.extract().map_err(explain)?;
    config.check()?;
    Ok(config)
}

/// Whether the log of a server is JSON, also where another setting is wrong.
pub fn logs_json(sources: &Sources) -> bool {
    let all = read_all(sources).unwrap_or_else(|_| given(sources).into());
    let newest_first = all.iter().rev().flat_map(|source| source.pairs.iter().rev());
    let formats = newest_first.filter(|(_, name, _)| name == "SANDBOX_LOG__FORMAT");
    formats.filter_map(|(.., value)| value.as_str()).find(|format| !format.is_empty()) == Some("json")
}

/// Every source; later ones win.
fn read_all(sources: &Sources) -> Result<Vec<Source>, ConfigError> {
    let mut all = vec![defaults(), Source::pairs(&sources.fallbacks, "the command", false)];
    if let Some((text, origin)) = read(sources.file.as_deref(), "sandbox.toml")? {
        all.push(Source::toml(&text, origin)?);
    }
    if let Some((text, origin)) = read(sources.env_file.as_deref(), ".env")? {
        all.push(Source::env_file(&text, &origin)?);
    }
    all.extend(given(sources));
    Ok(all)
}

/// What the process was started with.
fn given(sources: &Sources) -> [Source; 2] {
    let environment = Source::pairs(&sources.environment, "the environment", true);
    [environment, Source::pairs(&sources.overrides, "the command line", false)]
}

/// The settings when no source sets any.
pub(super) fn default_config() -> Config {
    Figment::from(defaults()).extract().unwrap_or_default()
}

fn defaults() -> Source {
    let pairs: Vec<_> = NAMED.iter().map(|setting| (setting.key.to_owned(), setting.default.to_owned())).collect();
    Source::pairs(&pairs, "the defaults", false)
}

/// One source: every pair has its name as it is written there and the name in the environment.
struct Source {
    origin: String,
    pairs: Vec<(String, String, Value)>,
    /// Other programs have names there too.
    shared: bool,
}

impl Source {
    fn pairs(pairs: &[(String, String)], origin: &str, shared: bool) -> Self {
        let one = |(name, value): &(String, String)| {
            // A root is named as SANDBOX_ROOT is, too.
            let known = if name == "SANDBOX_SKILLS_ROOT" { "SANDBOX_SKILLS__ROOT" } else { name };
            (name.clone(), known.to_owned(), Value::from(value.trim()))
        };
        let pairs = pairs.iter().map(one).collect();
        Self { origin: origin.to_owned(), pairs, shared }
    }

    fn env_file(text: &str, origin: &str) -> Result<Self, ConfigError> {
        let pairs: Result<Vec<_>, _> = dotenvy::from_read_iter(text.as_bytes()).collect();
        let pairs = pairs
            .map_err(|_| ConfigError(format!("{origin} has a line that is not `NAME=value`: correct or remove it.")))?;
        Ok(Self::pairs(&pairs, origin, true))
    }

    /// A table is a section; the other keys are names as in the environment.
    fn toml(text: &str, origin: String) -> Result<Self, ConfigError> {
        let parsed: Dict = Figment::from(Toml::string(text)).extract().map_err(|error| {
            ConfigError(format!("{origin} is not valid TOML: {}.", unquoted(&error.kind.to_string())))
        })?;
        let mut pairs = Vec::new();
        for (key, value) in parsed {
            match value {
                Value::Dict(_, table) => pairs.extend(table.into_iter().map(|(inner, value)| {
                    (format!("{key}.{inner}"), format!("SANDBOX_{key}__{inner}").to_uppercase(), value)
                })),
                value => pairs.push((key.clone(), key, value)),
            }
        }
        Ok(Self { origin, pairs, shared: false })
    }
}

impl Provider for Source {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.origin.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, Error> {
        let mut figment = Figment::new();
        for (shown, name, value) in &self.pairs {
            match settings().find(|setting| setting.has_name(name)) {
                // An empty value means "not set": compose files pass every name that they know.
                Some(_) if value.as_str() == Some("") => {}
                Some(setting) => {
                    let plain = value.as_str().and_then(|text| in_unit(setting.key, text)).map(Value::from);
                    let path = match (setting.section, value) {
                        // A text is the value alone, and the table has the rest.
                        ("secrets", Value::String(..)) => setting.path(name) + ".value",
                        ("tools", Value::String(..)) => setting.path(name) + ".secret",
                        _ => setting.path(name),
                    };
                    figment = figment.merge(Serialized::default(&path, plain.as_ref().unwrap_or(value)));
                }
                None if self.shared && !name.starts_with("SANDBOX_") => {}
                None => return Err(unknown(shown, &self.origin).into()),
            }
        }
        figment.data()
    }
}

/// A number with a unit as the number that the setting takes: `30s`, `500ms`, `5m`, `2h`, `64KiB`, `256MiB`, `1GiB`.
/// `None` for anything else. The unit of a setting is in its key.
fn in_unit(key: &str, text: &str) -> Option<String> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = (text[..digits].parse::<u64>().ok()?, text[digits..].trim());
    let kind = |unit: &str| key.split('_').any(|part| part == unit);
    let factor = match unit {
        "KiB" if kind("bytes") => 1 << 10,
        "MiB" if kind("bytes") => 1 << 20,
        "GiB" if kind("bytes") => 1 << 30,
        _ if !kind("ms") && !kind("s") => return None,
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    let divisor = if kind("s") { 1000 } else { 1 };
    let whole = number.checked_mul(factor)?;
    whole.is_multiple_of(divisor).then(|| (whole / divisor).to_string())
}

/// What the parser of TOML says, without the line that it quotes: that may hold a secret.
fn unquoted(text: &str) -> String {
    let mut lines = text.trim().lines();
    match lines.next().and_then(|first| first.strip_prefix("TOML parse error at ")) {
        // The quoted line is between two others.
        Some(origin) => iter::once(origin).chain(lines.skip(3)).collect::<Vec<_>>().join(", "),
        None => text.trim().to_owned(),
    }
}

/// The text of a file and its name.
fn read(named: Option<&Path>, default: &str) -> Result<Option<(String, String)>, ConfigError> {
    let path = named.unwrap_or(Path::new(default));
    let origin = path.display().to_string();
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some((text, origin))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && named.is_none() => Ok(None),
        Err(error) => Err(ConfigError(format!("{origin} cannot be read: {error}."))),
    }
}

fn unknown(name: &str, origin: &str) -> String {
    format!(
        "`{}` in {origin} is not a setting: correct or remove it; \
         `mcp-sandbox-server config table` lists every setting.",
        shown(name)
    )
}

/// The kind of an error never repeats a value: see [`super::value::deserialize`].
fn explain(error: Error) -> ConfigError {
    let path = error.path.join(".");
    let name = |setting: &Setting| match setting.key {
        ANY_KEY => format!("SANDBOX_{}", path.replacen('.', "__", 1)).to_uppercase(),
        _ => setting.name(),
    };
    let setting = settings().find(|setting| setting.path(&name(setting)) == path);
    ConfigError(match (setting, error.kind) {
        (Some(setting), kind) => format!("{} has a wrong value: {kind}.", name(&setting)),
        (None, Kind::Message(sentence)) => sentence,
        (None, kind) => format!("the settings cannot be read: {kind}."),
    })
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
