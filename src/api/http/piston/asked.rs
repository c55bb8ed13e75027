//! What Piston's clients send. As there, a member that nobody knows is ignored, and one that is null, 0 or empty counts as
//! absent where it is optional.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::selector::{takes, version};
use crate::{
    api::schema::arguments::create_run::MEMORY_BYTES_MIN,
    domain::{
        error::{Code, Failure},
        id::Language,
        limits::Limits,
        path::SafePath,
    },
    ports::runner::Runner,
};

const FILES_MAX: usize = 200;
const ARGS_MAX: usize = 256;
/// How much of what was sent is told back, in characters.
const SHOWN_CHARS_MAX: usize = 64;

/// What to run.
#[derive(Debug)]
pub(super) struct Asked {
    language: String,
    selector: String,
    pub program: Bytes,
    pub files: Vec<(SafePath, Bytes)>,
    pub args: Vec<String>,
    pub stdin: Bytes,
    pub limits: Limits,
}

/// What to run.
#[derive(ToSchema)]
#[schema(as = PistonExecute)]
#[expect(dead_code, reason = "stands for the members in the API's description; they are read by hand")]
pub(super) struct ExecuteBody {
    /// A language or an alias of one.
    #[schema(min_length = 1)]
    language: String,
    /// Which version, as npm selects them: `3.13.5`, `3.x`, `^3.10`, `*`.
    #[schema(min_length = 1)]
    version: String,
    /// The program and what it needs: at most 200.
    #[schema(min_items = 1, max_items = 200)]
    files: Vec<ExecuteFile>,
    /// What the program reads.
    stdin: Option<String>,
    /// Arguments of the program.
    #[schema(max_items = 256)]
    args: Option<Vec<String>>,
    /// Wall clock of the program, in milliseconds; the server's limit where it is not said.
    run_timeout: Option<u64>,
    /// Accepted; there is no compile stage of its own.
    compile_timeout: Option<u64>,
    /// Accepted.
    run_cpu_time: Option<u64>,
    /// Accepted; there is no compile stage of its own.
    compile_cpu_time: Option<u64>,
    /// Memory in bytes; -1, or nothing, for the server's limit.
    run_memory_limit: Option<i64>,
    /// Accepted; there is no compile stage of its own.
    compile_memory_limit: Option<i64>,
}

/// A file.
#[derive(ToSchema)]
#[expect(dead_code, reason = "stands for the members in the API's description; they are read by hand")]
struct ExecuteFile {
    /// Its path; `file0.code` and so on where there is none.
    name: Option<String>,
    /// What it holds.
    content: String,
    /// How that is written: `utf8` where it is not said.
    #[schema(value_type = Option<Encoding>)]
    encoding: Option<String>,
}

#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "stands for the words in the API's description")]
enum Encoding {
    Utf8,
    Base64,
    Hex,
}

fn refuse(argument: &str, message: impl Into<String>) -> Failure {
    Failure::new(Code::InvalidArgument, message).about(argument)
}

impl Asked {
    /// Reads the members.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`], naming the member.
    pub(super) fn parse(mut members: Map<String, Value>, server: &Limits) -> Result<Self, Failure> {
        let language = required(&mut members, "language")?;
        let selector = required(&mut members, "version")?;
        let Some(Value::Array(files)) = members.remove("files") else {
            return Err(refuse("files", "files is required as an array"));
        };
        if files.len() > FILES_MAX {
            return Err(refuse("files", format!("files cannot exceed the configured limit of {FILES_MAX}")));
        }
        let (program, files) = read_files(files)?;
        Ok(Self {
            language,
            selector,
            program,
            files,
            args: args(members.remove("args"))?,
            stdin: optional(members.remove("stdin"), "stdin")?.unwrap_or_default().into(),
            limits: limits(&members, server)?,
        })
    }

    /// The runtime that is meant.
    ///
    /// # Errors
    /// [`Code::RunnerNotFound`].
    pub(super) fn runtime(&self, runners: &[Runner]) -> Result<Runner, Failure> {
        let language = self.language.parse::<Language>().ok();
        let named = |runner: &&Runner| language.as_ref() == Some(&runner.language);
        let known_as = |runner: &&Runner| language.as_ref().is_some_and(|language| runner.aliases.contains(language));
        let found = runners.iter().find(named).or_else(|| runners.iter().find(known_as));
        let found = found.filter(|runner| takes(self.selector.trim(), &version(runner)) == Some(true));
        found.cloned().ok_or_else(|| {
            let (language, selector) = (shown(&self.language), shown(&self.selector));
            Failure::new(Code::RunnerNotFound, format!("{language}-{selector} runtime is unknown"))
        })
    }
}

fn shown(text: &str) -> String {
    text.escape_debug().take(SHOWN_CHARS_MAX).collect()
}

fn required(members: &mut Map<String, Value>, name: &str) -> Result<String, Failure> {
    match members.remove(name) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text),
        _ => Err(refuse(name, format!("{name} is required as a string"))),
    }
}

fn optional(value: Option<Value>, name: &str) -> Result<Option<String>, Failure> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(refuse(name, format!("If specified, {name} must be a string"))),
    }
}

/// The program, which is the first file in UTF-8, and the other files.
fn read_files(files: Vec<Value>) -> Result<(Bytes, Vec<(SafePath, Bytes)>), Failure> {
    let (mut program, mut others) = (None, Vec::new());
    for (index, file) in files.into_iter().enumerate() {
        let member = |name: &str| format!("files[{index}].{name}");
        let Value::Object(mut file) = file else {
            return Err(refuse("files", format!("files[{index}] is required as an object")));
        };
        let Some(Value::String(content)) = file.remove("content") else {
            return Err(refuse("files", format!("{} is required as a string", member("content"))));
        };
        let name = optional(file.remove("name"), &member("name"))?.filter(|name| !name.is_empty());
        let name = name.unwrap_or_else(|| format!("file{index}.code"));
        let path = SafePath::from_text(&name).map_err(|why| refuse("files", format!("{}: {why}", member("name"))))?;
        let encoding = optional(file.remove("encoding"), &member("encoding"))?;
        let bytes = match encoding.as_deref() {
            Some("base64") => BASE64_STANDARD.decode(content.trim()).ok(),
            Some("hex") => hex(content.trim()),
            // As there: what is none of the three is taken as it is.
            _ => {
                if program.is_none() {
                    program = Some(Bytes::from(content));
                    continue;
                }
                Some(content.into_bytes())
            }
        };
        let wrong = || refuse("files", format!("{} is not what its encoding says", member("content")));
        others.push((path, bytes.ok_or_else(wrong)?.into()));
    }
    Ok((program.ok_or_else(|| refuse("files", "files must include at least one utf8 encoded file"))?, others))
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let pairs = digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    pairs.collect()
}

fn args(value: Option<Value>) -> Result<Vec<String>, Failure> {
    let wrong = || refuse("args", format!("If specified, args must be an array of at most {ARGS_MAX} strings"));
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(all)) if all.len() <= ARGS_MAX => {
            let one = |value| match value {
                Value::String(text) if !text.contains('\0') => Ok(text),
                _ => Err(wrong()),
            };
            all.into_iter().map(one).collect()
        }
        Some(_) => Err(wrong()),
    }
}

fn limits(members: &Map<String, Value>, server: &Limits) -> Result<Limits, Failure> {
    let constraint = |name: &str, most: Option<u64>| -> Result<Option<u64>, Failure> {
        let number = match members.get(name) {
            None | Some(Value::Null | Value::Bool(false)) => return Ok(None),
            Some(Value::String(text)) if text.is_empty() => return Ok(None),
            Some(Value::Number(number)) => number,
            Some(_) => return Err(refuse(name, format!("If specified, {name} must be a number"))),
        };
        // JavaScript knows no whole numbers: 3000.0 and 3000.5 are taken too.
        let whole = number.to_string().split('.').next().and_then(|digits| digits.parse().ok());
        let Some(value): Option<u64> = whole else {
            // -1 is how Piston writes that there is no limit of the request's own.
            let none = number.as_i64() == Some(-1) && name.ends_with("memory_limit");
            return if none { Ok(None) } else { Err(refuse(name, format!("{name} must be non-negative"))) };
        };
        match most {
            Some(most) if value > most => {
                Err(refuse(name, format!("{name} cannot exceed the configured limit of {most}")))
            }
            _ => Ok(Some(value).filter(|value| *value > 0)),
        }
    };
    // There is no compile stage, so its limits bound nothing and none is too high.
    for name in ["compile_timeout", "compile_cpu_time", "compile_memory_limit", "run_cpu_time"] {
        constraint(name, None)?;
    }
    let wall_ms = constraint("run_timeout", Some(server.wall_ms))?.unwrap_or(server.wall_ms);
    let memory = constraint("run_memory_limit", Some(server.memory_bytes))?;
    // A sandbox does not start in less.
    let memory_bytes = memory.map_or(server.memory_bytes, |asked| asked.max(MEMORY_BYTES_MIN).min(server.memory_bytes));
    Ok(Limits { memory_bytes, wall_ms, ..*server })
}
