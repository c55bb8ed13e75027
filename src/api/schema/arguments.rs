//! Arguments of the tools. A struct is an argument list: serde reads it, schemars makes its JSON Schema, and a doc
//! comment is the description that a model reads, with `@` for what the names of tools begin with. What a schema cannot
//! say is checked by the types of the members.

#[cfg(test)]
mod fuzz;

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::domain::{
    Code, ConversationId, Environment, Failure, Language, RunId, SafePath, error::Operation,
    id::CONVERSATION_ID_CHARS_MAX,
};

/// The longest that one call waits, in seconds.
pub const WAIT_S_MAX: u64 = 3600;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunCode {
    /// Whose files are /data. Give the same in every call to find files again; without it a new one is made and named
    /// in the answer.
    #[schemars(length(max = CONVERSATION_ID_CHARS_MAX), regex(pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$"))]
    pub conversation_id: Option<ConversationId>,
    /// The program's language.
    pub language: Language,
    /// The whole program.
    pub code: Program,
    /// Standard input.
    pub stdin: Option<String>,
    /// Command line arguments.
    pub args: Option<Vec<String>>,
    /// Variables of its environment.
    pub env: Option<Environment>,
    /// Time limit, below the server's.
    #[schemars(range(min = 1))]
    pub timeout_seconds: Option<u64>,
    /// How long to wait for the end, in the queue too. A run that takes longer goes on: see `@get_run`.
    #[schemars(range(min = 0, max = WAIT_S_MAX))]
    pub wait_seconds: Option<Wait>,
    /// Whether the run goes on when the client disconnects.
    pub detach: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunCell {
    pub conversation_id: Option<ConversationId>,
    pub code: Program,
    /// Default python.
    pub language: Option<Language>,
    pub stdin: Option<String>,
    pub timeout_seconds: Option<u64>,
    pub wait_seconds: Option<Wait>,
    pub detach: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OfSessions {
    #[serde(rename = "conversationId")]
    pub conversation: ConversationId,
}

/// Arguments of CodeRunner's tools.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecuteCommand {
    /// The code.
    pub command: Program,
}

/// Arguments of ipybox's tools.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecuteIpythonCell {
    /// The cell.
    pub code: Program,
    /// A time limit in seconds, below the server's.
    pub timeout: Option<f64>,
    /// Maximum characters of output.
    pub max_output_chars: Option<u64>,
}

/// Arguments of ipybox's tools.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InstallPackage {
    /// The package.
    pub package_name: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetRun {
    #[schemars(description = "From a result of @run_code.")]
    pub run_id: RunId,
    /// While it runs: only output after this event.
    pub after_event: Option<u64>,
    /// After its end: output from this byte on.
    pub output_offset: Option<u64>,
    /// How long to wait for the end.
    #[schemars(range(min = 0, max = WAIT_S_MAX))]
    pub wait_seconds: Option<Wait>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CancelRun {
    #[schemars(description = "From a result of @run_code.")]
    pub run_id: RunId,
}

/// Also the query of a request that takes none.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoArguments {}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListFiles {
    /// Conversation of /data.
    pub conversation_id: ConversationId,
    /// List only this folder of /data.
    pub folder: Option<String>,
    /// Cursor of the previous page.
    pub cursor: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReadFile {
    /// Conversation of /data.
    pub conversation_id: ConversationId,
    /// Relative to /data.
    pub path: Option<String>,
    /// Instead of path: a listed file's pathEncoded.
    pub path_encoded: Option<String>,
    /// Offset of the first byte.
    pub offset: Option<u64>,
    /// Maximum bytes to read.
    #[schemars(range(min = 1))]
    pub limit: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WriteFile {
    /// Conversation of /data.
    pub conversation_id: ConversationId,
    /// Relative to /data.
    #[serde(deserialize_with = "path")]
    #[schemars(with = "String")]
    pub path: SafePath,
    /// The whole content.
    pub content: String,
    /// Of content; base64 for binary data.
    #[schemars(extend("default" = "utf-8"))]
    pub encoding: Option<Encoding>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EditFile {
    /// Conversation of /data.
    pub conversation_id: ConversationId,
    /// Relative to /data.
    #[serde(deserialize_with = "path")]
    #[schemars(with = "String")]
    pub path: SafePath,
    /// The exact text to replace.
    pub old_text: Option<String>,
    /// The replacement.
    pub new_text: Option<String>,
    /// Replace all occurrences.
    pub replace_all: Option<bool>,
    /// Instead: text to append.
    pub append: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UploadUrl {
    /// Conversation of /data.
    pub conversation_id: ConversationId,
    /// Relative to /data.
    #[serde(deserialize_with = "path")]
    #[schemars(with = "String")]
    pub path: SafePath,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeleteFile {
    /// Conversation of /data.
    pub conversation_id: ConversationId,
    /// Relative to /data.
    pub path: Option<String>,
    /// Instead of path: a listed file's pathEncoded.
    pub path_encoded: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub enum Encoding {
    #[serde(rename = "utf-8")]
    Utf8,
    #[serde(rename = "base64")]
    Base64,
}

/// A program's text, which is not empty.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(inline)]
pub struct Program(#[schemars(with = "String")] pub Bytes);

/// How long a call waits for the end, in seconds: at most 3600.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "u64")]
#[schemars(inline)]
pub struct Wait(#[schemars(with = "u64")] pub Duration);

impl TryFrom<String> for Program {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        if text.is_empty() { Err("it is empty: give the program's text") } else { Ok(Self(text.into())) }
    }
}

impl TryFrom<u64> for Wait {
    type Error = String;

    fn try_from(seconds: u64) -> Result<Self, String> {
        if seconds > WAIT_S_MAX {
            return Err(format!("it is more than {WAIT_S_MAX}: wait less and call again"));
        }
        Ok(Self(Duration::from_secs(seconds)))
    }
}

impl WriteFile {
    /// The conversation, the path and the bytes to write. Takes time in proportion to the content.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for what is not base64; [`Code::TooLarge`] above the limit.
    pub fn decode(self, bytes_max: u64) -> Result<(ConversationId, SafePath, Bytes), Failure> {
        let bytes = match self.encoding.unwrap_or(Encoding::Utf8) {
            Encoding::Utf8 => self.content.into_bytes(),
            Encoding::Base64 => BASE64_STANDARD.decode(self.content).map_err(|_| {
                Failure::argument("content", "it is not base64: give standard base64 with padding and no line breaks")
            })?,
        };
        if bytes.len() as u64 > bytes_max {
            let why = format!("content: it has {} bytes and one file at most {bytes_max}: write less", bytes.len());
            return Err(Failure::new(Code::TooLarge, why));
        }
        Ok((self.conversation_id, self.path, bytes.into()))
    }
}

/// The path, plain or percent-encoded: exactly one of the two.
///
/// # Errors
/// [`Code::InvalidArgument`], naming the argument.
pub fn one_path(path: Option<&str>, encoded: Option<&str>) -> Result<SafePath, Failure> {
    match (path, encoded) {
        (Some(path), None) => SafePath::from_text(path).map_err(|why| Failure::argument("path", why)),
        (None, Some(encoded)) => SafePath::from_encoded(encoded).map_err(|why| Failure::argument("pathEncoded", why)),
        (None, None) => {
            Err(Failure::argument("path", "it is missing: give the path of a listed file").see(Operation::ListFiles))
        }
        (Some(_), Some(_)) => Err(Failure::argument("pathEncoded", "it stands beside `path`: give only one of them")),
    }
}

fn path<'de, D: serde::Deserializer<'de>>(reader: D) -> Result<SafePath, D::Error> {
    SafePath::from_text(&String::deserialize(reader)?).map_err(serde::de::Error::custom)
}
