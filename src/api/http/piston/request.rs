//! What Piston's clients send. As there, an unknown member is ignored, and one that is null, 0 or empty counts as
//! absent where it is optional. The sentences are Piston's.
//!
//! Versions are selected as npm selects them. A version in a runner's label is free text: its leading numbers count.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use semver::{Version, VersionReq};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::{
    api::schema::{
        parse::{self, Invalid, Source},
        run::MEMORY_BYTES_MIN,
    },
    domain::{Code, Failure, Language, Limits, SafePath, environment::ARGS_MAX, text::unhex},
    ports::runner::Runner,
};

const FILES_MAX: usize = 200;
/// The longest selector of a version, in bytes: one may have any number of alternatives.
const SELECTOR_BYTES_MAX: usize = 256;
/// How much of a sent text is repeated in an answer, in characters.
const SHOWN_CHARS_MAX: usize = 64;

/// A program to run.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = PistonExecute)]
pub(super) struct Execute {
    /// A language or an alias of one.
    #[schema(min_length = 1)]
    language: String,
    /// Which version, as npm selects them: `3.13.5`, `3.x`, `^3.10`, `*`.
    #[schema(min_length = 1)]
    version: String,
    /// The program first, then other files that it needs; at most 200.
    #[schema(min_items = 1, max_items = 200)]
    files: Vec<ExecuteFile>,
    /// Standard input of the program.
    pub stdin: Option<String>,
    /// Arguments of the program.
    #[schema(max_items = 256)]
    pub args: Option<Vec<String>>,
    /// Wall clock of the program, in milliseconds; default: the server's limit.
    #[schema(value_type = Option<u64>)]
    run_timeout: Option<Value>,
    /// Accepted and ignored, since there is no compile stage.
    #[schema(value_type = Option<u64>)]
    compile_timeout: Option<Value>,
    /// Accepted and ignored.
    #[schema(value_type = Option<u64>)]
    run_cpu_time: Option<Value>,
    /// Accepted and ignored, since there is no compile stage.
    #[schema(value_type = Option<u64>)]
    compile_cpu_time: Option<Value>,
    /// Memory in bytes; -1 or absent for the server's limit.
    #[schema(value_type = Option<i64>)]
    run_memory_limit: Option<Value>,
    /// Accepted and ignored, since there is no compile stage.
    #[schema(value_type = Option<i64>)]
    compile_memory_limit: Option<Value>,
}

/// A file.
#[derive(Debug, Deserialize, ToSchema)]
struct ExecuteFile {
    /// Its path; `file0.code` and so on by default.
    name: Option<String>,
    /// Its content.
    content: String,
    /// The encoding of the content; default `utf8`.
    #[schema(value_type = Option<Encoding>)]
    encoding: Option<String>,
}

// As there, any other word means `utf8` too.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "the words that the API's description lists")]
enum Encoding {
    Utf8,
    Base64,
    Hex,
}

/// A program and the files beside it.
type ProgramFiles = (Bytes, Vec<(SafePath, Bytes)>);

fn refuse(argument: &str, message: impl Into<String>) -> Failure {
    Failure::new(Code::InvalidArgument, message).about(argument)
}

impl Execute {
    /// # Errors
    /// [`Code::InvalidArgument`], naming the member.
    pub(super) fn parse(members: Map<String, Value>) -> Result<Self, Failure> {
        let execute: Self = parse::read(members, Source::Lenient).map_err(|(path, wrong)| {
            let message = match wrong {
                Invalid::Type { expected, optional: true, .. } => {
                    format!("If specified, {path} must be {expected}")
                }
                Invalid::Type { expected, .. } => format!("{path} is required as {expected}"),
                Invalid::Missing { name: "files" } => format!("{path} is required as an array"),
                Invalid::Missing { .. } => format!("{path} is required as a string"),
                Invalid::Rule { why } => format!("{path}: {why}"),
                Invalid::Unknown { .. } => format!("{path} is unknown"),
            };
            refuse(path.split(['[', '.']).next().unwrap_or_default(), message)
        })?;
        for (name, text) in [("language", &execute.language), ("version", &execute.version)] {
            if text.is_empty() {
                return Err(refuse(name, format!("{name} is required as a string")));
            }
        }
        if execute.files.len() > FILES_MAX {
            return Err(refuse("files", format!("files cannot exceed the configured limit of {FILES_MAX}")));
        }
        let args = execute.args.as_deref().unwrap_or_default();
        if args.len() > ARGS_MAX || args.iter().any(|text| text.contains('\0')) {
            let why = format!("If specified, args must be an array of at most {ARGS_MAX} strings without zero bytes");
            return Err(refuse("args", why));
        }
        Ok(execute)
    }

    /// The runtime that language and version select.
    ///
    /// # Errors
    /// [`Code::RunnerNotFound`].
    pub(super) fn runtime(&self, runners: &[Runner]) -> Result<Runner, Failure> {
        let language = self.language.parse::<Language>().ok();
        let found = language.and_then(|language| Runner::find(runners, &language));
        let found = found.filter(|runner| takes(self.version.trim(), &version(runner)) == Some(true));
        found.cloned().ok_or_else(|| {
            let shown = |text: &str| text.escape_debug().take(SHOWN_CHARS_MAX).collect::<String>();
            let (language, selector) = (shown(&self.language), shown(&self.version));
            Failure::new(Code::RunnerNotFound, format!("{language}-{selector} runtime is unknown"))
        })
    }

    /// The program, which is the first file in UTF-8, and the other files. Takes time in proportion to their size.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`], naming the member.
    pub(super) fn take_files(&mut self) -> Result<ProgramFiles, Failure> {
        let (mut program, mut others) = (None, Vec::new());
        for (index, file) in std::mem::take(&mut self.files).into_iter().enumerate() {
            let ExecuteFile { name, content, encoding } = file;
            let name = name.filter(|name| !name.is_empty()).unwrap_or_else(|| format!("file{index}.code"));
            let path = SafePath::from_text(&name);
            let path = path.map_err(|why| refuse("files", format!("files[{index}].name: {why}")))?;
            let bytes = match encoding.as_deref() {
                Some("base64") => BASE64_STANDARD.decode(content.trim()).ok(),
                Some("hex") => unhex(content.trim()),
                _ if program.is_none() => {
                    program = Some(Bytes::from(content));
                    continue;
                }
                _ => Some(content.into_bytes()),
            };
            let wrong = || refuse("files", format!("files[{index}].content is not what its encoding says"));
            others.push((path, bytes.ok_or_else(wrong)?.into()));
        }
        Ok((program.ok_or_else(|| refuse("files", "files must include at least one utf8 encoded file"))?, others))
    }

    /// # Errors
    /// [`Code::InvalidArgument`], naming the member.
    pub(super) fn limits(&self, server: &Limits) -> Result<Limits, Failure> {
        // There is no compile stage, so its limits bound nothing and none is too high.
        constraint("compile_timeout", self.compile_timeout.as_ref(), None)?;
        constraint("compile_cpu_time", self.compile_cpu_time.as_ref(), None)?;
        constraint("compile_memory_limit", self.compile_memory_limit.as_ref(), None)?;
        constraint("run_cpu_time", self.run_cpu_time.as_ref(), None)?;
        let wall_ms =
            constraint("run_timeout", self.run_timeout.as_ref(), Some(server.wall_ms))?.unwrap_or(server.wall_ms);
        let memory = constraint("run_memory_limit", self.run_memory_limit.as_ref(), Some(server.memory_bytes))?;
        // A sandbox does not start in less.
        let raised = |bytes: u64| bytes.max(MEMORY_BYTES_MIN).min(server.memory_bytes);
        Ok(Limits { memory_bytes: memory.map_or(u64::MAX, raised), wall_ms, ..Limits::UNBOUNDED })
    }
}

/// A limit of the request's own, if there is one.
fn constraint(name: &str, value: Option<&Value>, most: Option<u64>) -> Result<Option<u64>, Failure> {
    let number = match value {
        None | Some(Value::Null | Value::Bool(false)) => return Ok(None),
        Some(Value::String(text)) if text.is_empty() => return Ok(None),
        Some(Value::Number(number)) => number,
        Some(_) => return Err(refuse(name, format!("If specified, {name} must be a number"))),
    };
    // JavaScript has no whole numbers: 3000.0 and 3000.5 are accepted too.
    let whole = number.as_u64().or_else(|| {
        let number = number.as_f64().filter(|number| *number >= 0.0)?;
        // One that does not fit is above every limit.
        Some(format!("{:.0}", number.abs().trunc()).parse().unwrap_or(u64::MAX))
    });
    let Some(value) = whole else {
        // -1 is Piston's way to write that the request has no limit of its own.
        let none = number.as_i64() == Some(-1) && name.ends_with("memory_limit");
        return if none { Ok(None) } else { Err(refuse(name, format!("{name} must be non-negative"))) };
    };
    match most {
        Some(most) if value > most => Err(refuse(name, format!("{name} cannot exceed the configured limit of {most}"))),
        _ => Ok(Some(value).filter(|value| *value > 0)),
    }
}

/// A runner's version as three numbers.
pub(super) fn version(runner: &Runner) -> Version {
    numbers(runner.version.as_deref().unwrap_or_default())
}

fn numbers(text: &str) -> Version {
    let text = text.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let mut parts = text[..end].split('.').map(|part| part.parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    Version::new(next(), next(), next())
}

/// Whether a selector takes a version; `None` when it is no selector.
fn takes(selector: &str, version: &Version) -> Option<bool> {
    if selector.len() > SELECTOR_BYTES_MAX {
        return None;
    }
    let mut is_taken = false;
    for alternative in selector.split("||") {
        is_taken |= range(alternative.trim())?.matches(version);
    }
    Some(is_taken)
}

fn range(text: &str) -> Option<VersionReq> {
    if matches!(text, "" | "*" | "x" | "X" | "latest") {
        return Some(VersionReq::STAR);
    }
    if let Some((from, to)) = text.split_once(" - ") {
        return VersionReq::parse(&format!(">={}, <={}", from.trim(), to.trim())).ok();
    }
    // An operator may stand apart from its version.
    let mut parts: Vec<String> = Vec::new();
    for word in text.split([' ', ',']).filter(|word| !word.is_empty()) {
        match parts.last_mut() {
            Some(last) if last.ends_with(['<', '>', '=', '~', '^']) => last.push_str(word),
            _ => parts.push(word.to_owned()),
        }
    }
    let comparators: Vec<_> = parts.iter().map(|part| comparator(part)).collect();
    VersionReq::parse(&comparators.join(", ")).ok()
}

/// A bare version means itself here, and everything compatible there.
fn comparator(part: &str) -> String {
    let part = part.replace("~>", "~");
    let (operator, version) = part.split_at(part.find(|c: char| !"<>=~^".contains(c)).unwrap_or(part.len()));
    let version = version.trim_start_matches('v').replace(['x', 'X'], "*");
    match (operator, version.contains('*')) {
        ("" | "=" | "^" | "~", true) => version,
        ("", false) => format!("={version}"),
        (operator, _) => format!("{operator}{}", version.trim_end_matches(".*")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors() {
        let version = numbers("3.13.5 (main)");
        assert_eq!(version, Version::new(3, 13, 5));
        for good in [
            "*",
            "x",
            "",
            "3",
            "3.x",
            "3.13",
            "3.13.x",
            "3.13.5",
            "=3.13.5",
            "v3.13.5",
            "^3.10.0",
            "~3.13.1",
            ">=3",
            ">= 3.0.0",
            ">3.10 <4",
            "2.x || 3.x",
            "3.10.0 - 3.14.0",
            "latest",
            "3.*",
            "^3.x",
        ] {
            assert_eq!(takes(good, &version), Some(true), "{good}");
        }
        for bad in ["2", "3.12", "3.13.4", "^2", "<3", ">=4", "~3.12.0", "2.x || 4.x"] {
            assert_eq!(takes(bad, &version), Some(false), "{bad}");
        }
        for nonsense in ["abc", "3.x.y.z", "3..", "-1", "^^3"] {
            assert_eq!(takes(nonsense, &version), None, "{nonsense}");
        }
        assert_eq!(takes(&"3||".repeat(80), &version), Some(true));
        assert_eq!(takes(&"3||".repeat(100), &version), None, "it is too long");
        assert_eq!(numbers(""), Version::new(0, 0, 0));
        assert_eq!(numbers("v24.1"), Version::new(24, 1, 0));
    }
}
