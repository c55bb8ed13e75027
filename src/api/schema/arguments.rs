//! What a client sends, parsed on entry. An argument that breaks its rule is named, with what to do about it.
//!
//! Read by hand and not by serde: its texts name the type and not the argument. [`super::json_schema`] describes the same
//! arguments to clients, and a test there holds the two against each other.

pub mod create_run;
#[cfg(test)]
mod fuzz;
pub mod known_run;

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde_json::{Map, Value};

use crate::domain::{
    error::{Code, Failure},
    id::{ConversationId, Language},
    path::SafePath,
};

/// How much of an unknown argument's name is told back, in characters.
const NAME_CHARS_MAX: usize = 40;
/// The longest that one call waits, in seconds.
pub const WAIT_S_MAX: u64 = 3600;

/// Arguments of `run_code`.
#[derive(Debug)]
pub struct RunCode {
    /// Whose files are /data.
    pub conversation: ConversationId,
    /// A language or an alias of one.
    pub language: Language,
    /// The program's text.
    pub code: Bytes,
    /// How long to wait for the end; the server's own time where it is not said.
    pub wait: Option<Duration>,
    /// Whether the run goes on when its client goes away, where it is said.
    pub detach: Option<bool>,
}

/// Arguments of `list_files`.
#[derive(Debug)]
pub struct ListFiles {
    /// Whose files.
    pub conversation: ConversationId,
}

/// Arguments of `read_file`.
#[derive(Debug)]
pub struct ReadFile {
    /// Whose file.
    pub conversation: ConversationId,
    /// Which.
    pub path: SafePath,
    /// From which byte on.
    pub offset: u64,
}

/// Arguments of `write_file`.
#[derive(Debug)]
pub struct WriteFile {
    /// Whose file.
    pub conversation: ConversationId,
    /// Which.
    pub path: SafePath,
    /// The whole content.
    pub content: Bytes,
}

/// Arguments of `delete_file`.
#[derive(Debug)]
pub struct DeleteFile {
    /// Whose file.
    pub conversation: ConversationId,
    /// Which.
    pub path: SafePath,
}

/// Arguments of `run_code`.
pub const RUN_CODE: &[&str] = &["conversationId", "language", "code", "waitSeconds", "detach"];
/// Arguments of `list_runners`.
pub const LIST_RUNNERS: &[&str] = &[];
/// Arguments of `list_files`.
pub const LIST_FILES: &[&str] = &["conversationId"];
/// Arguments of `read_file`.
pub const READ_FILE: &[&str] = &["conversationId", "path", "pathEncoded", "offset"];
/// Arguments of `write_file`.
pub const WRITE_FILE: &[&str] = &["conversationId", "path", "content", "encoding"];
/// Arguments of `delete_file`.
pub const DELETE_FILE: &[&str] = &["conversationId", "path", "pathEncoded"];

impl RunCode {
    /// Reads them.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`], naming the argument.
    pub fn parse(arguments: Map<String, Value>) -> Result<Self, Failure> {
        let mut arguments = Arguments::new(arguments, RUN_CODE)?;
        let conversation = arguments.conversation()?;
        let language = arguments.required("language", "the language to run, such as python; list_runners names all")?;
        let language = language.parse().map_err(|why| Failure::argument("language", why))?;
        let code = arguments.required("code", "the program's text")?;
        if code.is_empty() {
            return Err(Failure::argument("code", "it is empty: give the program's text"));
        }
        let (wait, detach) = (arguments.wait("waitSeconds")?, arguments.flag("detach")?);
        Ok(Self { conversation, language, code: code.into(), wait, detach })
    }
}

/// Reads the arguments of `list_runners`: there are none.
///
/// # Errors
/// [`Code::InvalidArgument`], naming the argument.
pub fn parse_list_runners(arguments: Map<String, Value>) -> Result<(), Failure> {
    Arguments::new(arguments, LIST_RUNNERS).map(drop)
}

impl ListFiles {
    /// Reads them.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`], naming the argument.
    pub fn parse(arguments: Map<String, Value>) -> Result<Self, Failure> {
        let mut arguments = Arguments::new(arguments, LIST_FILES)?;
        Ok(Self { conversation: arguments.conversation()? })
    }
}

impl ReadFile {
    /// Reads them.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`], naming the argument.
    pub fn parse(arguments: Map<String, Value>) -> Result<Self, Failure> {
        let mut arguments = Arguments::new(arguments, READ_FILE)?;
        let conversation = arguments.conversation()?;
        let path = arguments.path()?;
        Ok(Self { conversation, path, offset: arguments.whole_number("offset")?.unwrap_or(0) })
    }
}

impl WriteFile {
    /// Reads them.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`], naming the argument; [`Code::TooLarge`] when there are more bytes than the ceiling.
    pub fn parse(arguments: Map<String, Value>, bytes_max: u64) -> Result<Self, Failure> {
        let mut arguments = Arguments::new(arguments, WRITE_FILE)?;
        let conversation = arguments.conversation()?;
        let path = arguments.required("path", "where to write, such as input/table.csv")?;
        let path = SafePath::from_text(&path).map_err(|why| Failure::argument("path", why))?;
        let content = arguments.required("content", "what to write; an empty text makes an empty file")?;
        let content = match arguments.text("encoding")?.as_deref() {
            None | Some("utf-8") => content.into_bytes(),
            Some("base64") => BASE64_STANDARD.decode(content).map_err(|_| {
                Failure::argument("content", "it is not base64: give standard base64 with padding and no line breaks")
            })?,
            Some(_) => {
                return Err(Failure::argument("encoding", "it is neither `utf-8` nor `base64`: give one of them"));
            }
        };
        if content.len() as u64 > bytes_max {
            let why =
                format!("content: it is {} bytes, more than the {bytes_max} of one file: write less", content.len());
            return Err(Failure::new(Code::TooLarge, why));
        }
        Ok(Self { conversation, path, content: content.into() })
    }
}

impl DeleteFile {
    /// Reads them.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`], naming the argument.
    pub fn parse(arguments: Map<String, Value>) -> Result<Self, Failure> {
        let mut arguments = Arguments::new(arguments, DELETE_FILE)?;
        let conversation = arguments.conversation()?;
        Ok(Self { conversation, path: arguments.path()? })
    }
}

/// Arguments that are being read.
struct Arguments(Map<String, Value>);

impl Arguments {
    /// Refuses names that nobody knows first: a misspelt name is a better hint than a missing one.
    fn new(arguments: Map<String, Value>, known: &[&str]) -> Result<Self, Failure> {
        match arguments.keys().find(|name| !known.contains(&name.as_str())) {
            Some(name) => Err(unknown(name, known)),
            None => Ok(Self(arguments)),
        }
    }

    /// A value; null counts as absent.
    fn value(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    fn text(&mut self, name: &str) -> Result<Option<String>, Failure> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(Failure::argument(name, format!("it is {}: give a string", kind(&other)))),
        }
    }

    fn required(&mut self, name: &str, what: &str) -> Result<String, Failure> {
        self.text(name)?.ok_or_else(|| Failure::argument(name, format!("it is missing: give {what}")))
    }

    fn whole_number(&mut self, name: &str) -> Result<Option<u64>, Failure> {
        let refuse = |what: &str| Failure::argument(name, format!("it is {what}: give a whole number from 0 up"));
        match self.value(name) {
            None => Ok(None),
            Some(Value::Number(number)) => {
                number.as_u64().map(Some).ok_or_else(|| refuse("not a whole number from 0 up"))
            }
            Some(other) => Err(refuse(kind(&other))),
        }
    }

    fn flag(&mut self, name: &str) -> Result<Option<bool>, Failure> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(Failure::argument(name, format!("it is {}: give true or false", kind(&other)))),
        }
    }

    fn wait(&mut self, name: &str) -> Result<Option<Duration>, Failure> {
        match self.whole_number(name)? {
            Some(wait) if wait > WAIT_S_MAX => {
                Err(Failure::argument(name, format!("it is more than {WAIT_S_MAX}: wait less and ask again")))
            }
            wait => Ok(wait.map(Duration::from_secs)),
        }
    }

    fn conversation(&mut self) -> Result<ConversationId, Failure> {
        let what = "a name of your own choice that is the same in every call that shares files";
        let text = self.required("conversationId", what)?;
        text.parse().map_err(|why| Failure::argument("conversationId", why))
    }

    /// The path, plain or percent-encoded: exactly one of the two.
    fn path(&mut self) -> Result<SafePath, Failure> {
        match (self.text("path")?, self.text("pathEncoded")?) {
            (Some(path), None) => SafePath::from_text(&path).map_err(|why| Failure::argument("path", why)),
            (None, Some(encoded)) => {
                SafePath::from_encoded(&encoded).map_err(|why| Failure::argument("pathEncoded", why))
            }
            (None, None) => Err(Failure::argument("path", "it is missing: give a path that list_files names")),
            (Some(_), Some(_)) => {
                Err(Failure::argument("pathEncoded", "it is there beside `path`: give only one of them"))
            }
        }
    }
}

fn unknown(name: &str, known: &[&str]) -> Failure {
    let plain = |text: &str| text.chars().filter(|c| c.is_alphanumeric()).collect::<String>().to_lowercase();
    let shown: String = name.escape_debug().take(NAME_CHARS_MAX).collect();
    let near = known.iter().find(|known| {
        let (name, known) = (plain(name), plain(known));
        name == known || (name.len() > 2 && (known.starts_with(&name) || name.starts_with(&known)))
    });
    let why = match (near, known) {
        (Some(near), _) => format!("there is no such argument: write `{near}`"),
        (None, []) => "there is no such argument: this tool takes none".to_owned(),
        (None, known) => format!("there is no such argument: the arguments are {}", known.join(", ")),
    };
    Failure::argument(&shown, why)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
