//! Each tool: its arguments, one call of a service, its answer. Those that wait for a run are in [`super::waiting`].

use rmcp::model::{CallToolResult, JsonObject};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    Caller, McpParts,
    caller::{ToolCall, ToolResponse, ToolResult},
    content,
    describe::ToolName,
    picture,
    shown::{ANSWER_BYTES_MAX, fitting},
};
use crate::{
    api::schema::{
        CHARACTER_BYTES_MAX, File, FileListing, FileResult, RunnerList, Upload,
        arguments::{
            Conversation, DeleteFile, EditFile, ListFiles, NoArguments, ReadFile, UploadUrl, WriteFile, one_path,
        },
        file_query,
        parse::{Source, by_size, parse},
    },
    domain::{
        error::{Code, Failure, Operation},
        text::rfc3339,
    },
    services::files::{TextChange, media_type},
};

impl McpParts {
    /// Calls a tool. The answer may be a question, after which the call is repeated.
    ///
    /// # Errors
    /// Arguments that break a rule, and failures of ours. A program that fails is a result.
    pub(super) async fn call(&self, tool: ToolName, call: ToolCall<'_>, arguments: JsonObject) -> ToolResponse {
        let caller = call.caller;
        let result = match tool {
            ToolName::RunCode => return self.run_code(call, read(arguments)?).await,
            ToolName::GetRun => self.get_run(call, read(arguments)?).await,
            ToolName::CancelRun => self.cancel_run(caller, read(arguments)?).await,
            ToolName::ListRunners => Ok(self.list_runners(caller, read(arguments)?)),
            ToolName::ListFiles => self.list_files(caller, read(arguments)?).await,
            ToolName::ReadFile => self.read_file(caller, read(arguments)?).await,
            ToolName::WriteFile => self.write_file(caller, read(arguments)?).await,
            ToolName::EditFile => self.edit_file(caller, read(arguments)?).await,
            ToolName::UploadUrl => self.upload_url(caller, read(arguments)?),
            ToolName::DeleteFile => self.delete_file(caller, read(arguments)?).await,
            ToolName::RunCell => return self.run_cell(call, read(arguments)?).await,
            ToolName::Interrupt => self.interrupt(caller, read(arguments)?).await,
            ToolName::ResetSession => self.reset_session(caller, read(arguments)?),
            ToolName::ListSessions => Ok(self.list_sessions(caller, read(arguments)?)),
            ToolName::InstallPackages => self.install_packages(caller, read(arguments)?).await,
            ToolName::ExecutePythonCode => self.execute_command(call, "python", read(arguments)?).await,
            ToolName::ExecuteBashCode => self.execute_command(call, "bash", read(arguments)?).await,
            ToolName::GetKernelStatus => self.kernel_status(caller, read(arguments)?),
            ToolName::ExecuteIpythonCell => self.execute_ipython_cell(call, read(arguments)?).await,
            ToolName::Browse => self.browse(call, read(arguments)?).await,
            ToolName::NavigateText => self.navigate_text(call, read(arguments)?).await,
            ToolName::InstallPackage => self.install_package(caller, read(arguments)?).await,
            ToolName::ListSkills => self.list_skills(caller, read(arguments)?).await,
            ToolName::GetSkillInfo => self.skill_info(caller, read(arguments)?).await,
            ToolName::GetSkillFile => self.skill_file(caller, read(arguments)?).await,
            ToolName::SearchTools => self.search_tools(caller, read(arguments)?).await,
            ToolName::GetToolSource => self.tool_source(caller, read(arguments)?).await,
            ToolName::RegisterMcpServer => self.register_mcp_server(caller, read(arguments)?).await,
            ToolName::CheckCode => self.check_code(caller, read(arguments)?).await,
            ToolName::Reset => self.reset(caller, read(arguments)?),
        };
        result.map(Into::into)
    }

    fn list_runners(&self, caller: &Caller, NoArguments {}: NoArguments) -> CallToolResult {
        content::runners(caller, &RunnerList::from(&self.runs))
    }

    async fn list_files(&self, caller: &Caller, arguments: ListFiles) -> ToolResult {
        let ListFiles { conversation_id: Conversation(conversation), folder, cursor } = arguments;
        let top = |folder: &str| matches!(folder.trim_end_matches('/'), "" | "." | "/data");
        let folder = folder.as_deref().filter(|folder| !top(folder));
        let query = file_query(folder, ("cursor", cursor.as_deref()), None)?;
        let key = caller.key(conversation);
        let list = FileListing::from(&self.files.page(&key, query).await?);
        let folder = folder.map(|folder| format!(", \"folder\": {}", Value::from(folder))).unwrap_or_default();
        Ok(content::listing(caller, &format!("\"conversationId\": \"{}\"{folder}", key.id), &list))
    }

    async fn read_file(&self, caller: &Caller, request: ReadFile) -> ToolResult {
        let path = one_path(request.path.as_deref(), request.path_encoded.as_deref())?;
        let offset = request.offset.unwrap_or(0);
        if request.limit == Some(0) {
            return Err(Failure::argument("limit", "it must be at least 1"));
        }
        let limit = request.limit.unwrap_or(self.options.read_bytes()).min(self.options.read_bytes_max);
        // A picture is of use only whole.
        let whole = offset == 0 && request.limit.is_none() && picture::is_picture(media_type(path.name()));
        let bytes_max = if whole { limit.max(self.options.image_bytes_max) } else { limit };
        let key = caller.key(request.conversation_id.0);
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

    async fn write_file(&self, caller: &Caller, file: WriteFile) -> ToolResult {
        let bytes_max = self.options.write_bytes_max;
        let (conversation, path, content) = by_size(file.content.len(), move || file.decode(bytes_max)).await?;
        let entry = self.files.write(&caller.key(conversation), &path, content).await?;
        Ok(content::written(caller, "Wrote", &File::from(&entry)))
    }

    async fn edit_file(&self, caller: &Caller, arguments: EditFile) -> ToolResult {
        let EditFile { conversation_id, path, old_text, new_text, replace_all, append } = arguments;
        let change = match (old_text, new_text, append) {
            (Some(old), Some(new), None) if !old.is_empty() => {
                TextChange::Replace { old, new, all: replace_all.unwrap_or(false) }
            }
            (Some(_), Some(_), None) => {
                return Err(Failure::argument("oldText", "it is empty: give the text to replace"));
            }
            (None, None, Some(text)) if replace_all.is_none() => TextChange::Append(text),
            _ => return Err(Failure::argument("oldText", "give either oldText and newText, or append alone")),
        };
        let entry = self.files.edit(&caller.key(conversation_id.0), &path, change).await?;
        Ok(content::written(caller, "Edited", &File::from(&entry)))
    }

    fn upload_url(&self, caller: &Caller, arguments: UploadUrl) -> ToolResult {
        let UploadUrl { conversation_id: Conversation(conversation), path } = arguments;
        let (url, expires_unix_s, bytes_max) =
            self.files.upload_url(&caller.key(conversation), &path).ok_or_else(no_uploads)?;
        Ok(content::upload(caller, &Upload { url, url_expires_at: rfc3339(expires_unix_s), bytes_max }))
    }

    async fn delete_file(&self, caller: &Caller, request: DeleteFile) -> ToolResult {
        let path = one_path(request.path.as_deref(), request.path_encoded.as_deref())?;
        self.files.delete(&caller.key(request.conversation_id.0), &path, None).await?;
        Ok(content::deleted(caller, &path.display()))
    }
}

fn read<T: DeserializeOwned + JsonSchema>(arguments: JsonObject) -> Result<T, Failure> {
    parse(arguments, Source::Json)
}

fn no_uploads() -> Failure {
    let why = "Over standard input and output no server takes an upload: write the file in parts by the tool, or share \
               a folder with programs (the option --mount) and copy the file in a program.";
    Failure::new(Code::Forbidden, why).see(Operation::WriteFile)
}
