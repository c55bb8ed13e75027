//! Each tool: its arguments, one call of a service, its answer.
//!
//! ```text
//! run_code ── holds its run by `CancelOnDrop`: a call that is cancelled, or dropped, ends the program
//! ```

use rmcp::{
    RoleServer,
    model::{CallToolResult, JsonObject},
    service::RequestContext,
};

use super::{Caller, McpParts, content, describe::ToolName, picture, progress::Progress};
use crate::{
    nouns::error::Failure,
    services::{execution::RunRequest, runs::Policy},
    surfaces::wire::{
        Deleted, File, FileListing, FileResult, RunResult, RunnerList,
        arguments::{self, DeleteFile, ListFiles, ReadFile, RunCode, WriteFile},
    },
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
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, Failure> {
        match tool {
            ToolName::RunCode => self.run_code(caller, arguments, context).await,
            ToolName::ListRunners => self.list_runners(arguments),
            ToolName::ListFiles => self.list_files(caller, arguments).await,
            ToolName::ReadFile => self.read_file(caller, arguments).await,
            ToolName::WriteFile => self.write_file(caller, arguments).await,
            ToolName::DeleteFile => self.delete_file(caller, arguments).await,
        }
    }

    async fn run_code(
        &self,
        caller: &Caller,
        arguments: JsonObject,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, Failure> {
        let RunCode { conversation, language, code } = RunCode::parse(arguments)?;
        let principal = caller.principal.clone();
        let request = RunRequest::new(principal, conversation, language, code);
        let run = self.runs.create(request, Policy::CancelWhenLeft)?;
        let mut progress = Progress::of(context);
        let report = loop {
            tokio::select! {
                report = run.finished() => break report?,
                // rmcp does not drop a cancelled call, so it is waited for until the program is dead.
                () = context.ct.cancelled() => {
                    run.cancel();
                    break run.finished().await?;
                }
                () = progress.tell() => {}
            }
        };
        let pictures = picture::of_run(&self.files, &self.options, &caller.principal, &report).await;
        Ok(content::run(&RunResult::from(&*report), pictures))
    }

    fn list_runners(&self, arguments: JsonObject) -> Result<CallToolResult, Failure> {
        arguments::parse_list_runners(arguments)?;
        Ok(content::runners(&RunnerList::from(&self.runs)))
    }

    async fn list_files(&self, caller: &Caller, arguments: JsonObject) -> Result<CallToolResult, Failure> {
        let ListFiles { conversation } = ListFiles::parse(arguments)?;
        let list = self.files.list(&caller.principal, &conversation).await?;
        Ok(content::listing(&FileListing::from(&list)))
    }

    async fn read_file(&self, caller: &Caller, arguments: JsonObject) -> Result<CallToolResult, Failure> {
        let ReadFile { conversation, path, offset } = ReadFile::parse(arguments)?;
        let file = self.files.read(&caller.principal, &conversation, &path, offset).await?;
        let whole = offset == 0 && !file.truncated && file.bytes.len() as u64 <= self.options.image_bytes_max;
        let picture = if whole { picture::block(&file.bytes) } else { None };
        Ok(content::file(&FileResult::new(&file, offset), picture))
    }

    async fn write_file(&self, caller: &Caller, arguments: JsonObject) -> Result<CallToolResult, Failure> {
        let WriteFile { conversation, path, content } = WriteFile::parse(arguments, self.options.write_bytes_max)?;
        let entry = self.files.write(&caller.principal, &conversation, &path, content).await?;
        Ok(content::written(&File::from(&entry)))
    }

    async fn delete_file(&self, caller: &Caller, arguments: JsonObject) -> Result<CallToolResult, Failure> {
        let DeleteFile { conversation, path } = DeleteFile::parse(arguments)?;
        self.files.delete(&caller.principal, &conversation, &path).await?;
        Ok(content::deleted(&path.display(), &Deleted { deleted: true }))
    }
}
