//! Arguments of the tools. A struct is an argument list: serde reads it, schemars makes its JSON Schema, and a doc
//! comment is the description that a model reads. What a schema cannot say is checked by the types of the members.

#[cfg(test)]
mod fuzz;

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use super::parse;
use crate::domain::{
    error::{Code, Failure, Operation},
    id::{CONVERSATION_ID_CHARS_MAX, ConversationId, LANGUAGE_CHARS_MAX, Language, RunId},
    path::SafePath,
};

/// The longest that one call waits, in seconds.
pub const WAIT_S_MAX: u64 = 3600;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunCode {
    #[serde(rename = "conversationId", deserialize_with = "parse::text")]
    #[schemars(schema_with = "conversation")]
    pub conversation: ConversationId,
    /// The language of the program.
    #[serde(deserialize_with = "parse::text")]
    #[schemars(with = "String", length(min = 1, max = LANGUAGE_CHARS_MAX))]
    pub language: Language,
    /// The whole program, as in a file. Each run is a fresh process: define and import what it needs again, and keep
    /// data in files in /data.
    #[schemars(length(min = 1))]
    pub code: Program,
    /// How many seconds to wait for the program's end. One that takes longer goes on: the result then has its state,
    /// its output so far and its runId for `get_run`. 0 returns at once.
    #[schemars(range(min = 0, max = WAIT_S_MAX))]
    pub wait_seconds: Option<Wait>,
    /// true: the run goes on when this call is broken off, and `get_run` fetches it. false: it is then cancelled.
    /// Leave it out for the server's own choice.
    pub detach: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetRun {
    #[serde(rename = "runId", deserialize_with = "parse::text")]
    #[schemars(schema_with = "run_id")]
    pub run: RunId,
    /// While the program runs, show only what it printed after this event: the newestEvent of the result before. When
    /// it has ended, the result is whole in any case.
    #[schemars(range(min = 0), extend("default" = 0))]
    pub after_event: Option<u64>,
    /// How many seconds to wait for the program's end; 0 returns at once.
    #[schemars(range(min = 0, max = WAIT_S_MAX))]
    pub wait_seconds: Option<Wait>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRun {
    #[serde(rename = "runId", deserialize_with = "parse::text")]
    #[schemars(schema_with = "run_id")]
    pub run: RunId,
}

/// Also the query of a request that takes none.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListFiles {
    #[serde(rename = "conversationId", deserialize_with = "parse::text")]
    #[schemars(schema_with = "conversation")]
    pub conversation: ConversationId,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReadFile {
    #[serde(rename = "conversationId", deserialize_with = "parse::text")]
    #[schemars(schema_with = "conversation")]
    pub conversation: ConversationId,
    /// Path of the file relative to /data, such as out/report.csv.
    pub path: Option<String>,
    /// Instead of path: the pathEncoded of a listed file whose name cannot be written as plain text.
    pub path_encoded: Option<String>,
    /// First byte to read.
    #[schemars(range(min = 0), extend("default" = 0))]
    pub offset: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteFile {
    #[serde(rename = "conversationId", deserialize_with = "parse::text")]
    #[schemars(schema_with = "conversation")]
    pub conversation: ConversationId,
    /// Path of the file relative to /data, such as input/table.csv. Missing folders are made.
    #[serde(deserialize_with = "path")]
    #[schemars(with = "String")]
    pub path: SafePath,
    /// The whole content. It replaces the file.
    pub content: String,
    /// How content is written: utf-8 for text, base64 for any bytes.
    #[schemars(extend("default" = "utf-8"))]
    pub encoding: Option<Encoding>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeleteFile {
    #[serde(rename = "conversationId", deserialize_with = "parse::text")]
    #[schemars(schema_with = "conversation")]
    pub conversation: ConversationId,
    /// Path of the file relative to /data, such as out/report.csv.
    pub path: Option<String>,
    /// Instead of path: the pathEncoded of a listed file whose name cannot be written as plain text.
    pub path_encoded: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
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

/// How long a call waits, at most [`WAIT_S_MAX`].
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

impl ReadFile {
    /// # Errors
    /// [`Code::InvalidArgument`], naming the argument.
    pub fn path(&self) -> Result<SafePath, Failure> {
        one_path(self.path.as_deref(), self.path_encoded.as_deref())
    }
}

impl DeleteFile {
    /// # Errors
    /// [`Code::InvalidArgument`], naming the argument.
    pub fn path(&self) -> Result<SafePath, Failure> {
        one_path(self.path.as_deref(), self.path_encoded.as_deref())
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
        Ok((self.conversation, self.path, bytes.into()))
    }
}

/// The path, plain or percent-encoded: exactly one of the two.
fn one_path(path: Option<&str>, encoded: Option<&str>) -> Result<SafePath, Failure> {
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

fn conversation(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string", "minLength": 1, "maxLength": CONVERSATION_ID_CHARS_MAX,
        "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$",
        "description": "Names the conversation whose files are /data. Choose one name (letters, digits, . _ -) and \
                        give the same in every call, so that files are found again; another name sees other files.",
    })
}

fn run_id(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string", "pattern": "^run-[0-9a-f]{32}$",
        "description": "The runId of a result of run_code or get_run.",
    })
}
