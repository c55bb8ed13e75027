//! What the server says of itself and its tools. Written for models: what a tool is for, what it needs, what to expect.
//!
//! The list is in a fixed order and depends on the settings and the runners only, never on who asks.

use std::sync::Arc;

use rmcp::model::{Implementation, JsonObject, ServerCapabilities, ServerConfig, Tool, ToolAnnotations};

use super::McpOptions;
use crate::{
    api::schema::{
        self,
        json_schema::{self, InputFacts},
    },
    domain::limits::Limits,
};

/// The tools there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolName {
    /// Runs a program.
    RunCode,
    /// Comes back to a run.
    GetRun,
    /// Stops a run.
    CancelRun,
    /// Names the languages.
    ListRunners,
    /// Names a conversation's files.
    ListFiles,
    /// Reads a file.
    ReadFile,
    /// Writes a file.
    WriteFile,
    /// Deletes a file.
    DeleteFile,
}

impl ToolName {
    /// All, in the order of the list.
    pub const ALL: [Self; 8] = [
        Self::RunCode,
        Self::GetRun,
        Self::CancelRun,
        Self::ListRunners,
        Self::ListFiles,
        Self::ReadFile,
        Self::WriteFile,
        Self::DeleteFile,
    ];

    /// The contract's name.
    pub fn dotted(self) -> &'static str {
        match self {
            Self::RunCode => "sandbox.run_code",
            Self::GetRun => "sandbox.get_run",
            Self::CancelRun => "sandbox.cancel_run",
            Self::ListRunners => "sandbox.list_runners",
            Self::ListFiles => "sandbox.list_files",
            Self::ReadFile => "sandbox.read_file",
            Self::WriteFile => "sandbox.write_file",
            Self::DeleteFile => "sandbox.delete_file",
        }
    }

    /// The name for clients that refuse a dot.
    pub fn underscored(self) -> &'static str {
        match self {
            Self::RunCode => "sandbox_run_code",
            Self::GetRun => "sandbox_get_run",
            Self::CancelRun => "sandbox_cancel_run",
            Self::ListRunners => "sandbox_list_runners",
            Self::ListFiles => "sandbox_list_files",
            Self::ReadFile => "sandbox_read_file",
            Self::WriteFile => "sandbox_write_file",
            Self::DeleteFile => "sandbox_delete_file",
        }
    }

    /// The tool of either name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| name == tool.dotted() || name == tool.underscored())
    }

    fn title(self) -> &'static str {
        match self {
            Self::RunCode => "Run code",
            Self::GetRun => "Get a run",
            Self::CancelRun => "Cancel a run",
            Self::ListRunners => "List languages",
            Self::ListFiles => "List files",
            Self::ReadFile => "Read a file",
            Self::WriteFile => "Write a file",
            Self::DeleteFile => "Delete a file",
        }
    }

    /// Nothing here reaches beyond the conversation: a sandbox has no network.
    fn annotations(self) -> ToolAnnotations {
        let (read_only, destructive, idempotent) = match self {
            // A program may do anything to the conversation's files, deleting them too.
            Self::RunCode => (false, true, false),
            Self::GetRun | Self::ListRunners | Self::ListFiles | Self::ReadFile => (true, false, true),
            // The second deletion finds no file, which is told as an error; nothing more changes. A run that is over
            // stays as it is.
            Self::CancelRun | Self::WriteFile | Self::DeleteFile => (false, true, true),
        };
        ToolAnnotations::with_title(self.title())
            .read_only(read_only)
            .destructive(destructive)
            .idempotent(idempotent)
            .open_world(false)
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

    fn input(self, facts: &InputFacts<'_>) -> json_schema::Schema {
        match self {
            Self::RunCode => json_schema::run_code(facts),
            Self::GetRun => json_schema::get_run(facts),
            Self::CancelRun => json_schema::cancel_run(),
            Self::ListRunners => json_schema::list_runners(),
            Self::ListFiles => json_schema::list_files(),
            Self::ReadFile => json_schema::read_file(facts),
            Self::WriteFile => json_schema::write_file(facts),
            Self::DeleteFile => json_schema::delete_file(),
        }
    }
}

/// The output schemas, made once.
pub struct Outputs([Arc<JsonObject>; 8]);

impl Default for Outputs {
    fn default() -> Self {
        Self(
            [
                json_schema::output::<schema::report::RunReport>(),
                json_schema::output::<schema::report::RunReport>(),
                json_schema::output::<schema::report::RunReport>(),
                json_schema::output::<schema::RunnerList>(),
                json_schema::output::<schema::FileListing>(),
                json_schema::output::<schema::FileResult>(),
                json_schema::output::<schema::File>(),
                json_schema::output::<schema::Deleted>(),
            ]
            .map(Arc::new),
        )
    }
}

/// The list of tools.
pub fn tools(options: &McpOptions, languages: &[String], outputs: &Outputs, underscore: bool) -> Vec<Tool> {
    let facts = InputFacts {
        languages,
        code_bytes_max: options.code_bytes_max,
        read_bytes_max: options.read_bytes_max,
        write_bytes_max: options.write_bytes_max,
        wait_s_default: options.wait_default.as_secs(),
    };
    let one = |(tool, output): (ToolName, &Arc<JsonObject>)| {
        let name = if underscore { tool.underscored() } else { tool.dotted() };
        Tool::new(name, tool.description(options), tool.input(&facts))
            .with_title(tool.title())
            .with_raw_output_schema(Arc::clone(output))
            .with_annotations(tool.annotations())
    };
    ToolName::ALL.into_iter().zip(&outputs.0).map(one).collect()
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
             most {}. One that takes longer than a call waits goes on, and get_run comes back to it. list_runners names \
             the languages.",
            seconds(wall_ms)
        ))
}

fn run_code(options: &McpOptions) -> String {
    let McpOptions { limits, wait_default, .. } = options;
    format!(
        "Runs a program in a fresh sandbox and returns what it printed, how it ended and the files it made.\n\n\
         - The working directory is /data. Files there belong to the conversation: they are there again in the next run \
         with the same conversationId. Nothing else survives a run: no variables, no processes, no installed packages.\n\
         - There is no network: nothing can be downloaded or installed. list_runners says what is installed.\n\
         - Limits of one run: {} of time, {} of memory, {} CPU cores, {} processes and threads, {} for one file; output \
         beyond {} is cut in the middle. A run that reaches a limit is stopped and says which.\n\
         - A program that takes longer than waitSeconds ({} where it is not said) goes on: the result then has its state, its \
         output so far and a runId for get_run and cancel_run.\n\
         - Print what you want to see: only printed text and files come back, not the value of the last line.\n\
         - To show a chart, save it as a PNG in /data (Python: figures left open are saved by themselves). Small pictures \
         come back as images, and every new or changed file as a download link.\n\
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
    fn figures_for_people() {
        assert_eq!(
            [0, 1023, 1024, 1536, 256 << 20, u64::MAX].map(size),
            ["0 B", "1023 B", "1 KiB", "1.5 KiB", "256 MiB", "17179869183.9 GiB"]
        );
        assert_eq!([500, 1000, 1250, 2].map(thousandths), ["0.5", "1", "1.25", "0.002"]);
        assert_eq!([30_000, 1500].map(seconds), ["30 s", "1500 ms"]);
    }

    #[test]
    fn either_name_finds_its_tool() {
        for tool in ToolName::ALL {
            assert_eq!(ToolName::find(tool.dotted()), Some(tool));
            assert_eq!(ToolName::find(tool.underscored()), Some(tool));
            assert_eq!(tool.dotted().replace('.', "_"), tool.underscored());
        }
        for name in ["", "run_code", "sandbox.run-code", "SANDBOX.run_code", "sandbox.run_code "] {
            assert_eq!(ToolName::find(name), None, "{name}");
        }
    }
}
