//! Each tool: its arguments, one call of a service, its answer. Those that wait for a run are in [`super::waiting`].

use rmcp::model::{CallToolResponse, CallToolResult, JsonObject};

use super::{
    Caller, McpParts,
    cancellation::Call,
    content,
    describe::ToolName,
    picture,
    shown::{ANSWER_BYTES_MAX, fitting},
    waiting::ToolContext,
};
use crate::{
    api::schema::{
        File, FileListing, FileResult, RunnerList, Upload,
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
    pub(super) async fn call(
        &self,
        tool: ToolName,
        caller: &Caller,
        arguments: JsonObject,
        call: &Call,
        context: ToolContext<'_>,
    ) -> Result<CallToolResponse, Failure> {
        let result = match tool {
            ToolName::RunCode => return self.run_code(caller, arguments, call, context).await,
            ToolName::GetRun => self.get_run(caller, arguments, call, context).await,
            ToolName::CancelRun => self.cancel_run(caller, arguments).await,
            ToolName::ListRunners => self.list_runners(caller, arguments),
            ToolName::ListFiles => self.list_files(caller, arguments).await,
            ToolName::ReadFile => self.read_file(caller, arguments).await,
            ToolName::WriteFile => self.write_file(caller, arguments).await,
            ToolName::EditFile => self.edit_file(caller, arguments).await,
            ToolName::UploadUrl => self.upload_url(caller, arguments),
            ToolName::DeleteFile => self.delete_file(caller, arguments).await,
            ToolName::RunCell => return self.run_cell(caller, arguments, call, context).await,
            ToolName::Interrupt => self.interrupt(caller, arguments).await,
            ToolName::ResetSession => self.reset_session(caller, arguments),
            ToolName::ListSessions => self.list_sessions(caller, arguments),
            ToolName::InstallPackages => self.install_packages(caller, arguments).await,
            ToolName::ExecutePythonCode => self.execute_command("python", caller, arguments, call, context).await,
            ToolName::ExecuteBashCode => self.execute_command("bash", caller, arguments, call, context).await,
            ToolName::GetKernelStatus => self.kernel_status(caller, arguments),
            ToolName::ExecuteIpythonCell => self.execute_ipython_cell(caller, arguments, call, context).await,
            ToolName::Browse => self.browse(caller, arguments, call, context).await,
            ToolName::NavigateText => self.navigate_text(caller, arguments, call, context).await,
            ToolName::InstallPackage => self.install_package(caller, arguments).await,
            ToolName::ListSkills => self.list_skills(caller, arguments).await,
            ToolName::GetSkillInfo => self.skill_info(caller, arguments).await,
            ToolName::GetSkillFile => self.skill_file(caller, arguments).await,
            ToolName::SearchTools => self.search_tools(caller, arguments).await,
            ToolName::GetToolSource => self.tool_source(caller, arguments).await,
            ToolName::RegisterMcpServer => self.register_mcp_server(caller, arguments).await,
            ToolName::CheckCode => self.check_code(caller, arguments).await,
            ToolName::Reset => self.reset(caller, arguments),
        };
        result.map(Into::into)
    }

    fn list_runners(&self, caller: &Caller, arguments: JsonObject) -> Result<CallToolResult, Failure> {
        let NoArguments {} = parse(arguments, Source::Json)?;
        Ok(content::runners(caller, &RunnerList::from(&self.runs)))
    }

    async fn list_files(&self, caller: &Caller, arguments: JsonObject) -> Result<CallToolResult, Failure> {
        let ListFiles { conversation_id: Conversation(conversation), folder, cursor } = parse(arguments, Source::Json)?;
        let top = |folder: &str| matches!(folder.trim_end_matches('/'), "" | "." | "/data");
        let folder = folder.as_deref().filter(|folder| !top(folder));
        let query = file_query(folder, ("cursor", cursor.as_deref()), None)?;
        let key = caller.key(conversation);
        let list = FileListing::from(&self.files.page(&key, query).await?);
        Ok(content::listing(caller, &key.id, &list))
    }

    async fn read_file(&self, caller: &Caller, arguments: JsonObject) -> Result<CallToolResult, Failure> {
        let request: ReadFile = parse(arguments, Source::Json)?;
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
        let file = self.files.read(&key, &path, offset, bytes_max).await?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let piece = || FileResult::new(&file, offset, limit, |text| fitting(text, limit));
        if whole && !caller.view.images && picture::kind(&file.bytes).is_some() {
            return Ok(content::picture_link(caller, piece(), &self.files.url(&key, &path)));
        }
        let room = ANSWER_BYTES_MAX - (16 << 10);
        let shown = whole && !file.truncated && picture::fits(file.size, &self.options, room);
        let mut picture = if shown { picture::block(&file.bytes) } else { None };
        if whole && caller.view.images && picture.is_none() {
            picture = picture::smaller(self, &key, &path, file.size, room).await.map(|(block, _)| block);
        }
        Ok(content::file(caller, piece(), picture))
    }

    async fn write_file(&self, caller: &Caller, arguments: JsonObject) -> Result<CallToolResult, Failure> {
        let file: WriteFile = parse(arguments, Source::Json)?;
        let bytes_max = self.options.write_bytes_max;
        let (conversation, path, content) = by_size(file.content.len(), move || file.decode(bytes_max)).await?;
        let entry = self.files.write(&caller.key(conversation), &path, content).await?;
        Ok(content::written(caller, "Wrote", &File::from(&entry)))
    }

    async fn edit_file(&self, caller: &Caller, arguments: JsonObject) -> Result<CallToolResult, Failure> {
        let EditFile { conversation_id, path, old_text, new_text, replace_all, append } =
            parse(arguments, Source::Json)?;
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

    fn upload_url(&self, caller: &Caller, arguments: JsonObject) -> Result<CallToolResult, Failure> {
        let UploadUrl { conversation_id: Conversation(conversation), path } = parse(arguments, Source::Json)?;
        let (url, expires_unix_s, bytes_max) =
            self.files.upload_url(&caller.key(conversation), &path).ok_or_else(no_uploads)?;
        Ok(content::upload(caller, &Upload { url, url_expires_at: rfc3339(expires_unix_s), bytes_max }))
    }

    async fn delete_file(&self, caller: &Caller, arguments: JsonObject) -> Result<CallToolResult, Failure> {
        let request: DeleteFile = parse(arguments, Source::Json)?;
        let path = one_path(request.path.as_deref(), request.path_encoded.as_deref())?;
        self.files.delete(&caller.key(request.conversation_id.0), &path, None).await?;
        Ok(content::deleted(caller, &path.display()))
    }
}

fn no_uploads() -> Failure {
    let why = "Over standard input and output no server takes an upload: write the file in parts by the tool, or share \
               a folder with programs (the option --mount) and copy the file in a program.";
    Failure::new(Code::Forbidden, why).see(Operation::WriteFile)
}
