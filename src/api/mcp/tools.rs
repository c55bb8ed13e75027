//! Each tool: its arguments, one call of a service, its answer. Here are those for files, packages, programs that are
//! checked and tools of MCP servers; those that wait for a run are in [`super::waiting`].

use std::fmt::Write as _;

use rmcp::model::CallToolResult;
use serde_json::Value;

use super::{
    Caller, McpParts,
    caller::ToolResult,
    content::{self, section},
    describe::ToolName,
    picture,
    sessions::own_conversation,
    shown::{ANSWER_BYTES_MAX, OUTPUT_BYTES_MAX, TEXT_BYTES_MAX, fitting, left_out, shorten, size},
};
use crate::{
    api::schema::{
        CHARACTER_BYTES_MAX, Deleted, File, FileListing, FileResult, RunnerList, Upload,
        arguments::{
            DeleteFile, EditFile, InstallPackage, ListFiles, NoArguments, ReadFile, UploadUrl, WriteFile, one_path,
        },
        file_filter,
        installed::{CheckProgram, CheckReport, InstallPackages, InstalledPackages, ProgramProblem},
        parse::by_size,
        tools::{GetToolSource, RegisterMcpServer, SearchTools, found_limit},
    },
    domain::{
        Code, Failure, Language, Scope,
        error::Operation,
        text::{one_line, rfc3339},
    },
    services::{
        files::{FileQuery, TextChange, media_type},
        packages::{InstallRequest, Installed},
        tools::{Found, ModuleLanguage, SearchResult, ServerState},
    },
};

/// Room for the lines about problems of a program, in bytes.
const PROBLEMS_BYTES_MAX: usize = 16 << 10;

impl McpParts {
    pub(super) fn list_runners(&self, caller: &Caller, NoArguments {}: NoArguments) -> CallToolResult {
        content::runners(caller, &RunnerList::from(&self.runs))
    }

    pub(super) async fn list_files(&self, caller: &Caller, arguments: ListFiles) -> ToolResult {
        let ListFiles { conversation_id, folder, cursor } = arguments;
        let top = |folder: &str| matches!(folder.trim_end_matches('/'), "" | "." | "/data");
        let folder = folder.as_deref().filter(|folder| !top(folder));
        let filter = file_filter(("folder", folder), ("cursor", cursor.as_deref()))?;
        let key = caller.key(conversation_id);
        let list = FileListing::from(&self.files.page(&key, FileQuery { filter, limit: None }).await?);
        let folder = folder.map(|folder| format!(", \"folder\": {}", Value::from(folder))).unwrap_or_default();
        Ok(content::listing(caller, &format!("\"conversationId\": \"{}\"{folder}", key.id), &list))
    }

    pub(super) async fn read_file(&self, caller: &Caller, request: ReadFile) -> ToolResult {
        let path = one_path(request.path.as_deref(), request.path_encoded.as_deref())?;
        let offset = request.offset.unwrap_or(0);
        if request.limit == Some(0) {
            return Err(Failure::argument("limit", "it must be at least 1"));
        }
        let limit = request.limit.unwrap_or(self.options.read_bytes()).min(self.options.read_bytes_max);
        // A picture is of use only whole.
        let whole = offset == 0 && request.limit.is_none() && picture::is_picture(media_type(path.name()));
        let bytes_max = if whole { limit.max(self.options.image_bytes_max) } else { limit };
        let key = caller.key(request.conversation_id);
        let file = self.files.read(&key, &path, offset, bytes_max.max(CHARACTER_BYTES_MAX as u64)).await?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let piece = || FileResult::new(&file, offset, limit, |text| fitting(text, limit));
        if whole && !caller.view.images && picture::has_bytes_of_one(&file.bytes) {
            return Ok(content::picture_link(caller, piece(), &self.files.url(&key, &path)));
        }
        let room = ANSWER_BYTES_MAX - (16 << 10);
        let shown = whole && !file.truncated && picture::fits(file.size, &self.options, room);
        let mut picture = if shown { picture::block(&file.bytes) } else { None };
        if whole && caller.view.images && picture.is_none() {
            picture = picture::smaller(self, &key, &path, file.size, room).await.map(|(block, _)| block);
        }
        Ok(content::file(caller, (piece(), offset), picture))
    }

    pub(super) async fn write_file(&self, caller: &Caller, file: WriteFile) -> ToolResult {
        let bytes_max = self.options.write_bytes_max;
        let (conversation, path, content) = by_size(file.content.len(), move || file.decode(bytes_max)).await?;
        let entry = self.files.write(&caller.key(conversation), &path, content).await?;
        Ok(content::written(caller, "Wrote", &File::from(&entry)))
    }

    pub(super) async fn edit_file(&self, caller: &Caller, arguments: EditFile) -> ToolResult {
        let EditFile { conversation_id, path, old_text, new_text, replace_all, append } = arguments;
        let wrong = |name, why| Err(Failure::argument(name, why));
        let change = match (old_text, new_text, append) {
            (None, None, Some(_)) if replace_all.is_some() => {
                return wrong("replaceAll", "it goes with oldText and newText: leave it out to append");
            }
            (None, None, Some(text)) => TextChange::Append(text),
            (_, _, Some(_)) => return wrong("append", "it goes alone: leave out oldText and newText"),
            (None, None, None) => return wrong("oldText", "give either oldText and newText, or append alone"),
            (None, Some(_), None) => return wrong("oldText", "it is missing: give the text to replace"),
            (Some(old), ..) if old.is_empty() => return wrong("oldText", "it is empty: give the text to replace"),
            (Some(_), None, None) => return wrong("newText", "it is missing: give the new text, or \"\" to delete"),
            (Some(old), Some(new), None) => TextChange::Replace { old, new, all: replace_all.unwrap_or(false) },
        };
        let entry = self.files.edit(&caller.key(conversation_id), &path, change).await?;
        Ok(content::written(caller, "Edited", &File::from(&entry)))
    }

    pub(super) fn upload_url(&self, caller: &Caller, arguments: UploadUrl) -> ToolResult {
        let UploadUrl { conversation_id, path } = arguments;
        let (url, expires_unix_s, bytes_max) =
            self.files.upload_url(&caller.key(conversation_id), &path).ok_or_else(no_uploads)?;
        let url_expires_at = rfc3339(expires_unix_s);
        let size = size(bytes_max);
        let text = format!("Send the file with HTTP PUT, at most {size}, until {url_expires_at}: {url}");
        Ok(content::text_result(caller, text, &Upload { url, url_expires_at, bytes_max }))
    }

    pub(super) async fn delete_file(&self, caller: &Caller, request: DeleteFile) -> ToolResult {
        let path = one_path(request.path.as_deref(), request.path_encoded.as_deref())?;
        self.files.delete(&caller.key(request.conversation_id), &path, None).await?;
        Ok(content::text_result(caller, format!("Deleted /data/{}.", path.display()), &Deleted { deleted: true }))
    }

    pub(super) async fn install_packages(&self, caller: &Caller, arguments: InstallPackages) -> ToolResult {
        let InstallPackages { conversation_id, language, packages } = arguments;
        let wanted = InstallRequest { conversation: caller.key(conversation_id), language, tool: None, packages };
        let installed = self.packages.install(wanted).await?;
        Ok(content::text_result(caller, installed_sentence(&installed), &InstalledPackages::from(&installed)))
    }

    pub(super) async fn install_package(&self, caller: &Caller, arguments: InstallPackage) -> ToolResult {
        let (conversation, packages) = (caller.key(own_conversation(caller)?), vec![arguments.package_name]);
        let wanted = InstallRequest { conversation, language: Language::default(), tool: None, packages };
        match self.packages.install(wanted).await {
            Ok(installed) => Ok(content::plain(installed_sentence(&installed), false)),
            Err(failure) if failure.code == Code::PackagesOff => {
                Ok(content::plain(failure.message + self.what_is_there().as_str(), true))
            }
            Err(failure) => Err(failure.renamed("packages", "package_name")),
        }
    }

    fn what_is_there(&self) -> String {
        let runners = self.runs.runners();
        let python = runners.iter().find(|runner| runner.language == Language::default());
        let about = python.and_then(|runner| runner.description.as_deref());
        about.map(|about| format!(" Installed: {about}")).unwrap_or_default()
    }

    pub(super) async fn check_code(&self, caller: &Caller, arguments: CheckProgram) -> ToolResult {
        let CheckProgram { language, code } = arguments;
        let report = CheckReport::from(self.checker.check(&caller.principal, &language, &code.0).await?);
        // A part of a program is of no use. One that is formatted already is not repeated in a text.
        let is_shown = |formatted: &str| caller.view.structured || formatted.as_bytes() != &code.0[..];
        let is_long = |formatted: &str| fitting(formatted, OUTPUT_BYTES_MAX) < formatted.len();
        if report.code.as_deref().is_some_and(|formatted| is_shown(formatted) && is_long(formatted)) {
            let why = "it is too long for one answer when it is formatted: send a part of it";
            return Err(Failure::argument("code", why));
        }
        Ok(content::text_result(caller, checked_text(caller, &report, &code.0), &report))
    }

    /// Finds the tools that programs may call, so that a model need not read the descriptions of all.
    pub(super) async fn search_tools(&self, caller: &Caller, SearchTools { query, limit }: SearchTools) -> ToolResult {
        let SearchResult { tools, unanswered } =
            self.tools.search(&caller.principal, &query, found_limit(limit)?).await?;
        let mut text = String::new();
        for Found { server, tool, about, signature, module, may_destroy } in &tools {
            let asks = if *may_destroy { " [a person may be asked]" } else { "" };
            let (tool, signature) = (tool.escape_debug(), one_line(signature));
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{server}/{tool}{asks}: {about}\n  from {module} import run, Params  # {signature}");
        }
        let list = |states: &[ServerState]| {
            let one = |ServerState { name, tools, error, .. }: &ServerState| match tools {
                Some(count) => format!("{name}: {count} tools"),
                None => format!("{name}: {}", one_line(error.as_deref().unwrap_or_default())),
            };
            states.iter().map(one).collect::<Vec<_>>().join("; ")
        };
        if !unanswered.is_empty() {
            let none = if tools.is_empty() { "No tool of the other servers fits these words. " } else { "" };
            let _ = writeln!(text, "{none}Search again for the tools of these servers. {}.", list(&unanswered));
        } else if tools.is_empty() {
            // Each has answered just now.
            let servers = list(&self.tools.servers(&caller.principal).await);
            text =
                format!("No tool fits these words. Servers: {}.", if servers.is_empty() { "none" } else { &servers });
        }
        let search = caller.tool(ToolName::SearchTools);
        let mark = |_: usize, left: usize| {
            format!("\n[… {left} bytes are left out here: call {search} with other words, or with a smaller limit …]\n")
        };
        Ok(content::plain(shorten(&text, TEXT_BYTES_MAX, mark), false))
    }

    pub(super) async fn tool_source(&self, caller: &Caller, arguments: GetToolSource) -> ToolResult {
        let GetToolSource { server, tool, language } = arguments;
        let language = language.unwrap_or(ModuleLanguage::Python);
        let source = self.tools.source(&caller.principal, &server, &tool, language).await?;
        let text = source.types.unwrap_or(source.text);
        let route = "GET /v1/tools/{server}/{tool}/source";
        let mark = |_: usize, left: usize| format!("\n[… {left} bytes are left out here: {route} shows them …]\n");
        Ok(content::plain(shorten(&text, TEXT_BYTES_MAX, mark), false))
    }

    /// For the caller's own programs. Answers as ipybox does: the names of the tools, each in a text of its own.
    pub(super) async fn register_mcp_server(&self, caller: &Caller, arguments: RegisterMcpServer) -> ToolResult {
        let RegisterMcpServer { server_name, server_params } = arguments;
        if caller.check_scope(Scope::Admin).is_err() {
            let why = "Registering tool servers needs the scope admin: ask the operator to add the server.";
            return Err(Failure::new(Code::InsufficientScope, why));
        }
        let text = server_params.server(caller.principal.name())?;
        let name = self.tools.register(&caller.principal, &server_name, &text).await;
        let own_name = |failure: Failure| failure.renamed("name", "server_name").renamed("server", "server_params");
        let name = name.map_err(own_name)?;
        let tools = self.tools.names(&caller.principal, &name).await?;
        Ok(content::texts(tools))
    }
}

fn no_uploads() -> Failure {
    let why = "Over standard input and output no server takes an upload: write the file in parts by the tool, or share \
               a folder with programs (the option --mount) and copy the file in a program.";
    Failure::new(Code::Forbidden, why).see(Operation::WriteFile)
}

fn installed_sentence(installed: &Installed) -> String {
    format!("Installed: {}.", installed.packages.join(", "))
}

/// The problems, then the program; for a client with `structuredContent` the program is only there.
fn checked_text(caller: &Caller, report: &CheckReport, sent: &[u8]) -> String {
    let mut lines = String::new();
    for ProgramProblem { line, column, rule, message, severity, .. } in &report.problems {
        section(&mut lines, &format!("- {line}:{column} {rule} ({severity}): {message}"));
    }
    if lines.is_empty() {
        lines.push_str("No problems were found.");
    }
    let mut text = shorten(&lines, PROBLEMS_BYTES_MAX, left_out);
    match &report.code {
        None => section(&mut text, "[The program cannot be parsed, so it is not formatted.]"),
        Some(formatted) if formatted.as_bytes() == sent => section(&mut text, "[The program is formatted already.]"),
        Some(_) if caller.view.structured => section(&mut text, "[The formatted program: see code.]"),
        Some(formatted) => {
            section(&mut text, "[The formatted program:]");
            section(&mut text, formatted);
        }
    }
    text
}
