//! How the server describes itself and its tools. Written for models: what a tool is for, needs and returns.
//!
//! The list is in a fixed order and depends on the settings and the runners only, never on who asks.

use std::sync::{Arc, LazyLock};

use rmcp::model::{Implementation, JsonObject, ServerCapabilities, ServerConfig, Tool, ToolAnnotations};
use serde_json::Value;

use super::McpOptions;
use crate::{
    api::schema::{
        Deleted, File, FileListing, FileResult, RunnerList,
        arguments::{CancelRun, DeleteFile, GetRun, ListFiles, Nothing, ReadFile, RunCode, WriteFile},
        json_schema::{Schema, input, output},
        report::RunReport,
    },
    domain::{error::Operation, limits::Limits},
};

macro_rules! tools {
    ($($name:ident $word:literal $title:literal [$read_only:literal $destructive:literal $idempotent:literal]
        $arguments:ty => $result:ty;)*) => {
        /// The tools, in the order of the list.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ToolName {
            $(#[doc = $title] $name,)*
        }

        impl ToolName {
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The contract's name.
            pub fn dotted(self) -> &'static str {
                match self {
                    $(Self::$name => concat!("sandbox.", $word),)*
                }
            }

            /// The name for clients that refuse a dot.
            pub fn underscored(self) -> &'static str {
                match self {
                    $(Self::$name => concat!("sandbox_", $word),)*
                }
            }

            /// No tool reaches beyond the conversation: a sandbox has no network.
            fn annotations(self) -> ToolAnnotations {
                let (title, read_only, destructive, idempotent) = match self {
                    $(Self::$name => ($title, $read_only, $destructive, $idempotent),)*
                };
                let annotations = ToolAnnotations::with_title(title).read_only(read_only).destructive(destructive);
                annotations.idempotent(idempotent).open_world(false)
            }

            fn arguments(self) -> Schema {
                match self {
                    $(Self::$name => input::<$arguments>(),)*
                }
            }
        }

        /// In the order of the list.
        static OUTPUTS: LazyLock<Vec<Arc<JsonObject>>> = LazyLock::new(|| vec![$(Arc::new(output::<$result>()),)*]);
    };
}

// Name, title, then whether it is read-only, destructive and idempotent. A program may do anything to the
// conversation's files, deleting them too. The second deletion finds no file, which is an error; nothing more changes.
tools! {
    RunCode "run_code" "Run code" [false true false] RunCode => RunReport;
    GetRun "get_run" "Get a run" [true false true] GetRun => RunReport;
    CancelRun "cancel_run" "Cancel a run" [false true true] CancelRun => RunReport;
    ListRunners "list_runners" "List languages" [true false true] Nothing => RunnerList;
    ListFiles "list_files" "List files" [true false true] ListFiles => FileListing;
    ReadFile "read_file" "Read a file" [true false true] ReadFile => FileResult;
    WriteFile "write_file" "Write a file" [false true true] WriteFile => File;
    DeleteFile "delete_file" "Delete a file" [false true true] DeleteFile => Deleted;
}

impl From<Operation> for ToolName {
    fn from(operation: Operation) -> Self {
        match operation {
            Operation::ListRunners => Self::ListRunners,
            Operation::ListFiles => Self::ListFiles,
            Operation::WriteFile => Self::WriteFile,
        }
    }
}

impl ToolName {
    /// The tool of either name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|tool| name == tool.dotted() || name == tool.underscored())
    }

    fn description(self, options: &McpOptions) -> String {
        let McpOptions { read_bytes_max, write_bytes_max, .. } = options;
        match self {
            Self::RunCode => run_code(options),
            Self::GetRun => {
                "Waits for a run that run_code left running, and returns what it printed after afterEvent; when \
                             the program has ended, the whole result with its images and links, as run_code does. Call \
                             it again until state is finished. Runs that are over are kept for a while."
                    .to_owned()
            }
            Self::CancelRun => {
                "Stops a run and returns when its program is dead, with what it printed and the files it \
                                made until then. A run that is over stays as it is."
                    .to_owned()
            }
            Self::ListRunners => "Lists the languages that run_code can run now, with version, aliases and what is \
                                  installed for each."
                .to_owned(),
            Self::ListFiles => "Lists the files in a conversation's /data with size, media type, time and a download \
                                link. Works without running a program."
                .to_owned(),
            Self::ReadFile => format!(
                "Reads a file from a conversation's /data: text as text, a picture as an image, other bytes as base64. \
                 One call reads up to {}; for more, go on at the result's nextOffset. Large data is better processed \
                 by a program with run_code.",
                size(*read_bytes_max)
            ),
            Self::WriteFile => format!(
                "Writes a file of up to {} into a conversation's /data, where programs find it, and returns a download \
                 link. A file that is there is replaced; missing folders and the conversation itself are made.",
                size(*write_bytes_max)
            ),
            Self::DeleteFile => {
                "Deletes one file from a conversation's /data. A link is deleted itself, never what it points to; a \
                 folder goes with all that is in it."
                    .to_owned()
            }
        }
    }

    /// The schema of the arguments, with what depends on the settings and the runners.
    fn input(self, options: &McpOptions, languages: &[String]) -> Schema {
        let mut schema = self.arguments();
        let properties = schema.get_mut("properties");
        let Some(properties) = properties.and_then(Value::as_object_mut) else { return schema };
        for (name, property) in properties {
            match name.as_str() {
                "waitSeconds" => property["default"] = options.wait_default.as_secs().into(),
                "code" => property["maxLength"] = options.code_bytes_max.into(),
                "language" if languages.is_empty() => append(property, "Call list_runners for the names."),
                "language" => {
                    let known = languages.join(", ");
                    append(property, &format!("Installed now: {known}. list_runners tells more about each."));
                }
                "offset" => {
                    let most = options.read_bytes_max;
                    let about =
                        format!("One call reads up to {most} bytes; the result's nextOffset says where to go on.");
                    append(property, &about);
                }
                "content" => append(property, &format!("At most {} bytes.", options.write_bytes_max)),
                _ => {}
            }
        }
        schema
    }
}

fn append(property: &mut Value, sentence: &str) {
    let before = property["description"].as_str().unwrap_or_default();
    property["description"] = format!("{before} {sentence}").into();
}

/// The list of tools.
pub fn tools(options: &McpOptions, languages: &[String], underscore: bool) -> Vec<Tool> {
    let one = |(tool, output): (&ToolName, &Arc<JsonObject>)| {
        let name = if underscore { tool.underscored() } else { tool.dotted() };
        let annotations = tool.annotations();
        Tool::new(name, tool.description(options), tool.input(options, languages))
            .with_title(annotations.title.clone().unwrap_or_default())
            .with_raw_output_schema(Arc::clone(output))
            .with_annotations(annotations)
    };
    ToolName::ALL.iter().zip(OUTPUTS.iter()).map(one).collect()
}

/// Who we are, and how the tools work together.
pub fn server(options: &McpOptions) -> ServerConfig {
    let Limits { wall_ms, .. } = options.limits;
    let identity = Implementation::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
        .with_title("Code sandbox")
        .with_description(env!("CARGO_PKG_DESCRIPTION"));
    ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
        .with_server_info(identity)
        .with_instructions(format!(
            "Runs programs in a sandbox without network and keeps their files. run_code takes a conversationId of your \
             choice; files that a program leaves in /data stay there for later calls with the same conversationId, and \
             every new or changed file comes back as a link that a person can open. Each run is a fresh process of at \
             most {}. One that takes longer than a call waits goes on, and get_run comes back to it. list_runners \
             names the languages.",
            seconds(wall_ms)
        ))
}

fn run_code(options: &McpOptions) -> String {
    let McpOptions { limits, wait_default, .. } = options;
    format!(
        "Runs a program in a fresh sandbox and returns what it printed, how it ended and the files it made.\n\n\
         - The working directory is /data. Files there belong to the conversation: they are there again in the next \
         run with the same conversationId. Nothing else survives a run: no variables, no processes, no installed \
         packages.\n\
         - There is no network: nothing can be downloaded or installed. list_runners says what is installed.\n\
         - Limits of one run: {} of time, {} of memory, {} CPU cores, {} processes and threads, {} for one file; \
         output beyond {} is cut in the middle. A run that reaches a limit is stopped and says which.\n\
         - A program that takes longer than waitSeconds (default {}) goes on: the result then has its state, its \
         output so far and a runId for get_run and cancel_run.\n\
         - Print what you want to see: only printed text and files come back, not the value of the last line.\n\
         - To show a chart, save it as a PNG in /data (Python: figures left open are saved by themselves). Small \
         pictures come back as images, and every new or changed file as a download link.\n\
         - The run is marked as an error when the program does not end with status 0; the result says why.",
        seconds(limits.wall_ms),
        size(limits.memory_bytes),
        thousandths(limits.cpu_millis),
        limits.processes_max,
        size(limits.file_bytes_max),
        size(limits.output_kept_bytes),
        seconds(wait_default.as_secs() * 1000),
    )
}

fn seconds(ms: u64) -> String {
    if ms.is_multiple_of(1000) { format!("{} s", ms / 1000) } else { format!("{ms} ms") }
}

fn thousandths(millis: u32) -> String {
    let text = format!("{}.{:03}", millis / 1000, millis % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A number of bytes for people: at most one digit after the point, binary units.
pub fn size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 3] = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    for (unit, shift) in UNITS {
        if bytes >> shift > 0 {
            let tenths = (u128::from(bytes) * 10) >> shift;
            let point = if tenths.is_multiple_of(10) { String::new() } else { format!(".{}", tenths % 10) };
            return format!("{}{point} {unit}", tenths / 10);
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_readable() {
        assert_eq!(
            [0, 1023, 1024, 1536, 256 << 20, u64::MAX].map(size),
            ["0 B", "1023 B", "1 KiB", "1.5 KiB", "256 MiB", "17179869183.9 GiB"]
        );
        assert_eq!([500, 1000, 1250, 2].map(thousandths), ["0.5", "1", "1.25", "0.002"]);
        assert_eq!([30_000, 1500].map(seconds), ["30 s", "1500 ms"]);
    }

    #[test]
    fn either_name_finds_its_tool() {
        for tool in ToolName::ALL.iter().copied() {
            assert_eq!(ToolName::find(tool.dotted()), Some(tool));
            assert_eq!(ToolName::find(tool.underscored()), Some(tool));
            assert_eq!(tool.dotted().replace('.', "_"), tool.underscored());
        }
        for name in ["", "run_code", "sandbox.run-code", "SANDBOX.run_code", "sandbox.run_code "] {
            assert_eq!(ToolName::find(name), None, "{name}");
        }
    }
}
