//! Each tool: its arguments, one call of a service, its answer. Those that wait for a run are in [`super::waiting`].

use rmcp::model::{CallToolResult, JsonObject};

use super::{Caller, McpParts, cancellation::Call, content, describe::ToolName, picture, waiting::ToolContext};
use crate::{
    api::schema::{
        Deleted, File, FileListing, FileResult, RunnerList,
        arguments::{DeleteFile, ListFiles, Nothing, ReadFile, WriteFile},
        parse::{Source, by_size, parse},
    },
    domain::error::Failure,
};

impl McpParts {
    /// Calls a tool.
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
    ) -> Result<CallToolResult, Failure> {
        match tool {
            ToolName::RunCode => self.run_code(caller, arguments, call, context).await,
            ToolName::GetRun => self.get_run(caller, arguments, call, context).await,
            ToolName::CancelRun => self.cancel_run(caller, arguments).await,
            ToolName::ListRunners => self.list_runners(arguments),
            ToolName::ListFiles => self.list_files(caller, arguments).await,
            ToolName::ReadFile => self.read_file(caller, arguments).await,
            ToolName::WriteFile => self.write_file(caller, arguments).await,
            ToolName::DeleteFile => self.delete_file(caller, arguments).await,
        }
    }

    fn list_runners(&self, arguments: JsonObject) -> Result<CallToolResult, Failure> {
        let Nothing {} = parse(arguments, Source::Json)?;
        Ok(content::runners(&RunnerList::from(&self.runs)))
    }

    async fn list_files(&self, caller: &Caller, arguments: JsonObject) -> Result<CallToolResult, Failure> {
        let ListFiles { conversation } = parse(arguments, Source::Json)?;
        let list = self.files.list(&caller.key(conversation)).await?;
        Ok(content::listing(&FileListing::from(&list)))
    }

    async fn read_file(&self, caller: &Caller, arguments: JsonObject) -> Result<CallToolResult, Failure> {
        let request: ReadFile = parse(arguments, Source::Json)?;
        let (path, offset) = (request.path()?, request.offset.unwrap_or(0));
        let file = self.files.read(&caller.key(request.conversation), &path, offset).await?;
        let whole = offset == 0 && !file.truncated && file.bytes.len() as u64 <= self.options.image_bytes_max;
        let picture = if whole { picture::block(&file.bytes) } else { None };
        Ok(content::file(&FileResult::new(&file, offset), picture))
    }

    async fn write_file(&self, caller: &Caller, arguments: JsonObject) -> Result<CallToolResult, Failure> {
        let file: WriteFile = parse(arguments, Source::Json)?;
        let bytes_max = self.options.write_bytes_max;
        let (conversation, path, content) = by_size(file.content.len(), move || file.decode(bytes_max)).await?;
        let entry = self.files.write(&caller.key(conversation), &path, content).await?;
        Ok(content::written(&File::from(&entry)))
    }

    async fn delete_file(&self, caller: &Caller, arguments: JsonObject) -> Result<CallToolResult, Failure> {
        let request: DeleteFile = parse(arguments, Source::Json)?;
        let path = request.path()?;
        self.files.delete(&caller.key(request.conversation), &path).await?;
        Ok(content::deleted(&path.display(), &Deleted { deleted: true }))
    }
}
