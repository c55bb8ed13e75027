//! The wire format, shared by every surface: one struct for each request, answer and file, from which its parser, its
//! JSON Schema and its documents are derived. Names are camel case, and a change of one is a change of the public
//! contract.
//!
//! Knows no protocol: neither JSON-RPC nor HTTP nor content blocks.

pub mod admin;
pub mod arguments;
pub mod browse;
pub mod event;
mod file;
pub mod history;
pub mod installed;
pub mod json_schema;
pub mod network;
pub mod parse;
pub mod run;
pub mod session;
pub mod token;
pub mod tools;

use std::io;

use schemars::JsonSchema;
use serde::Serialize;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        ObjectBuilder, RefOr,
        schema::{KnownFormat, Schema, SchemaFormat, Type},
    },
};

pub use file::{
    ArchiveLink, CHARACTER_BYTES_MAX, File, FileListing, FileResult, MoveFile, Moved, SkippedResult, file_filter,
};

use crate::{
    domain::{Change, Code, Ended, Limits, Scope, id::RequestId, text::rfc3339},
    ports::{
        history::{EndWord, Notable},
        runner::Runner,
    },
    services::{
        admin::Span,
        check::has_tools,
        conversations::{ConversationPage, LastUse},
        runs::Runs,
    },
};

/// Makes structs of answers: each member stands beside the value that it has of what the struct is made from. Names are
/// camel case, and an optional member without a value is left out.
macro_rules! answers {
    ($(
        $(#[$($about:tt)+])*
        pub struct $name:ident($value:tt: $source:ty) {
            $($(#[$($of:tt)+])* $member:ident: $type:ty = $from:expr,)+
        }
    )+) => {
        $(
            #[serde_with::skip_serializing_none]
            #[derive(Debug, Clone, serde::Serialize, utoipa::ToSchema)]
            #[serde(rename_all = "camelCase")]
            $(#[$($about)+])*
            pub struct $name {
                $($(#[$($of)+])* pub $member: $type,)+
            }

            impl From<$source> for $name {
                fn from($value: $source) -> Self {
                    Self { $($member: $from,)+ }
                }
            }
        )+
    };
}
pub(crate) use answers;

/// Texts of the API's description: the words come from the domain's own lists.
macro_rules! texts {
    ($($(#[doc = $doc:literal])+ $name:ident: $kind:expr;)+) => {
        $(
            $(#[doc = $doc])+
            pub struct $name;

            impl PartialSchema for $name {
                fn schema() -> RefOr<Schema> {
                    let about = concat!($($doc),+).trim_ascii();
                    let kind: fn(ObjectBuilder) -> ObjectBuilder = $kind;
                    kind(ObjectBuilder::new().schema_type(Type::String).description(Some(about))).into()
                }
            }

            impl ToSchema for $name {}
        )+
    };
}

texts! {
    /// A stable word for the kind of an error.
    ErrorCode: |text: ObjectBuilder| text.enum_values(Some(Code::ALL.iter().map(|code| code.as_str())));
    /// One word for how a program ended.
    Ending: |text: ObjectBuilder| text.enum_values(Some(Ended::WORDS));
    /// One word for how a run ended: as its program did, or because the server failed or was lost.
    EndedWord: |text: ObjectBuilder| text.enum_values(Some(EndWord::all()));
    /// What a run did to a file.
    ChangeWord: |text: ObjectBuilder| text.enum_values(Some(Change::ALL.map(Change::word)));
    /// The state of a run.
    StateWord: |text: ObjectBuilder| text.enum_values(Some(["queued", "running", "finished"]));
    /// What a session does.
    SessionWord: |text: ObjectBuilder| text.enum_values(Some(["idle", "busy", "ended"]));
    /// What happened to a run.
    EventWord: |text: ObjectBuilder| text.enum_values(Some(event::EVENT_WORDS));
    /// The last hour by minute, or the last day by quarter of an hour.
    SpanWord: |text: ObjectBuilder| text.enum_values(Some(Span::ALL.map(Span::as_str)));
    /// Which runs are worth a look.
    NotableWord: |text: ObjectBuilder| text.enum_values(Some(Notable::ALL.map(Notable::word)));
    /// What a token may do.
    ScopeWord: |text: ObjectBuilder| text.enum_values(Some(Scope::ALL.map(Scope::as_str)));
    /// The name of a language.
    LanguageName: |text: ObjectBuilder| text.pattern(Some("^[A-Za-z0-9][A-Za-z0-9._+#-]*$")).max_length(Some(32));
    /// Bytes, unchanged.
    Binary: |text: ObjectBuilder| text.format(Some(SchemaFormat::KnownFormat(KnownFormat::Binary)));
}

answers! {
    /// The languages that can be run now.
    #[derive(JsonSchema)]
    pub struct RunnerList(runs: &Runs) {
        /// Ordered by language.
        runners: Vec<RunnerResult> = runs.runners().iter().map(|runner| (runner, runs).into()).collect(),
        /// Whether there are skills (`/v1/skills`).
        #[schemars(skip)]
        skills: Option<bool> = None,
    }

    /// The limits of a run that asks for no lower ones.
    #[derive(JsonSchema)]
    pub struct LimitsResult(limits: &Limits) {
        /// Wall clock, in milliseconds.
        wall_ms: u64 = limits.wall_ms,
        /// Memory, in bytes.
        memory_bytes: u64 = limits.memory_bytes,
        /// CPU time per second, in thousandths of a core.
        cpu_millis: u32 = limits.cpu_millis,
        /// Processes and threads together.
        processes_max: u32 = limits.processes_max,
        /// Output of both streams together, in bytes.
        output_bytes_max: u64 = limits.output_bytes_max,
    }

    /// One language.
    #[derive(JsonSchema)]
    pub struct RunnerResult((runner, runs): (&Runner, &Runs)) {
        /// The value for `language`.
        language: String = runner.language.to_string(),
        /// Other names that are accepted.
        aliases: Vec<String> = runner.aliases.iter().map(ToString::to_string).collect(),
        /// The language's version.
        version: Option<String> = runner.version.clone(),
        /// What is installed.
        description: Option<String> = runner.description.clone(),
        /// The container image.
        image: String = runner.reference.clone().unwrap_or_else(|| runner.image.0.clone()),
        /// Whether a run in `/v1` may have arguments and input, also while it goes on.
        takes_input: bool = runner.is_framed,
        /// Whether it offers sessions, which keep variables between cells.
        sessions: bool = runner.kernel.is_some(),
        /// Whether its programs are formatted and checked by `checkProgram`.
        checks: bool = has_tools(&runner.language),
        /// How many sandboxes stand by for it, started and loaded.
        standing_by: usize = runs.standing_by(runner),
        limits: LimitsResult = (&runs.limits_of(runner)).into(),
    }

    /// A page of conversations.
    pub struct ConversationList(page: &ConversationPage) {
        /// In the order of their names.
        conversations: Vec<ConversationResult> = page.conversations.iter().map(Into::into).collect(),
        /// Give it as `after` for the next page; absent on the last.
        after: Option<String> = page.after.as_ref().map(ToString::to_string),
    }

    /// A conversation.
    pub struct ConversationResult((known, bytes): &(LastUse, Option<u64>)) {
        /// Its name.
        conversation_id: String = known.key.id.to_string(),
        /// When a run last began in it, or an entry at the top of its folder was created or deleted (RFC 3339).
        used_at: String = rfc3339(known.unix_s),
        /// Disk space of its files, in bytes, where the server knows it without measuring.
        bytes: Option<u64> = *bytes,
    }

    /// An error of the server or the request; a program that fails is a result.
    pub struct ErrorResult(about: (Code, String, RequestId)) {
        /// What went wrong.
        error: ErrorBody = about.into(),
    }

    /// What went wrong.
    #[derive(JsonSchema)]
    pub struct ErrorBody((code, text, request): (Code, String, RequestId)) {
        /// A stable word for programs.
        code: &'static str = code.as_str(),
        /// One sentence that says what to do.
        message: String = text,
        /// Identifies the request in the server's log.
        request_id: String = request.to_string(),
    }
}

/// A file was deleted.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Deleted {
    /// Always true.
    pub deleted: bool,
}

/// A link for the upload of a file.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Upload {
    /// A signed link: a PUT of the bytes to it writes the file.
    pub url: String,
    /// When the link stops working (RFC 3339).
    pub url_expires_at: String,
    /// The largest file that it accepts, in bytes.
    pub bytes_max: u64,
}

/// A moment in unix milliseconds, as clients see it: a later one as the last moment that RFC 3339 can write.
fn moment(unix_ms: i64) -> String {
    rfc3339(unix_ms.div_euclid(1000).min(253_402_300_799))
}

/// The length of a value in JSON, in bytes. Nothing is kept of the text.
pub fn json_len(value: &impl Serialize) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // What cannot be serialized is not sent either.
    serde_json::to_writer(&mut count, value).map_or(0, |()| count.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moment_after_the_year_9999_is_the_last_one() {
        for (unix_ms, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59Z"),
            (253_402_300_800_000, "9999-12-31T23:59:59Z"),
            (i64::MAX, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(moment(unix_ms), text, "{unix_ms}");
        }
    }
}
