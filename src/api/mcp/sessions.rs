//! The tools for sessions, except for cells, which are runs: see [`super::waiting`]. Also the tools under the names
//! that CodeRunner and ipybox have for them, with plain text as results.
//!
//! Those of CodeRunner and ipybox name no conversation: each session of a client has one of its own; clients without a
//! session share one with the same token.

use rmcp::model::CallToolResult;

use super::{
    Caller, McpParts,
    caller::{ToolCall, ToolResult},
    content,
};
use crate::{
    api::schema::{
        arguments::{ExecuteCommand, ExecuteIpythonCell, NoArguments, OfSessions, Program},
        parse::time_limit,
        session::SessionList,
    },
    domain::{Code, ConversationId, Failure, Principal, id::IdError},
    services::{
        runs::{CellSession, RunRequest},
        sessions::SessionView,
    },
};

/// The conversation of clients of a token that have no session.
///
/// # Errors
/// Never: the id of a token is part of an id of a conversation.
pub fn shared_conversation(who: &Principal) -> Result<ConversationId, IdError> {
    who.token().map_or_else(|| SHARED.parse(), |token| format!("{SHARED}-{token}").parse())
}
const SHARED: &str = "mcp";

impl McpParts {
    pub(super) async fn interrupt(&self, caller: &Caller, OfSessions { conversation: id }: OfSessions) -> ToolResult {
        let sessions = self.open_sessions(caller, &id);
        for session in &sessions {
            ignore_missing(self.sessions.interrupt(&caller.principal, session.session).await)?;
        }
        Ok(content::sessions_changed(caller, sessions.len(), "Interrupted; variables are still there."))
    }

    pub(super) fn reset_session(&self, caller: &Caller, OfSessions { conversation: id }: OfSessions) -> ToolResult {
        let ended = self.end_sessions(caller, &id)?;
        Ok(content::sessions_changed(caller, ended, "All variables are gone; the files in /data are still there."))
    }

    pub(super) fn list_sessions(&self, caller: &Caller, OfSessions { conversation: id }: OfSessions) -> CallToolResult {
        let list = SessionList::from(&*self.open_sessions(caller, &id));
        content::text_result(caller, content::session_lines(&list), &list)
    }

    fn open_sessions(&self, caller: &Caller, conversation: &ConversationId) -> Vec<SessionView> {
        self.sessions.list(&caller.principal, Some(conversation))
    }

    /// Ends the sessions of a conversation: the next cell opens a new one. How many there were.
    fn end_sessions(&self, caller: &Caller, conversation: &ConversationId) -> Result<usize, Failure> {
        let sessions = self.open_sessions(caller, conversation);
        for session in &sessions {
            ignore_missing(self.sessions.close(&caller.principal, session.session).map(drop))?;
        }
        Ok(sessions.len())
    }

    pub(super) async fn execute_command(
        &self,
        call: ToolCall<'_>,
        language: &str,
        arguments: ExecuteCommand,
    ) -> ToolResult {
        let ExecuteCommand { command } = arguments;
        let request = cell(call.caller, command, Some(language))?;
        let report = self.run_to_end(call, request).await.map_err(|failure| failure.renamed("code", "command"))?;
        Ok(content::plain_run(call.caller, &report, usize::MAX))
    }

    pub(super) fn kernel_status(&self, caller: &Caller, NoArguments {}: NoArguments) -> ToolResult {
        let sessions = self.open_sessions(caller, &own_conversation(caller)?);
        Ok(content::plain(content::session_lines(&SessionList::from(&*sessions)), false))
    }

    pub(super) async fn execute_ipython_cell(&self, call: ToolCall<'_>, arguments: ExecuteIpythonCell) -> ToolResult {
        let ExecuteIpythonCell { code, timeout, max_output_chars } = arguments;
        let limits = timeout.map(|seconds| time_limit("timeout", seconds)).transpose()?;
        let request = RunRequest { limits, ..cell(call.caller, code, None)? };
        let shown = max_output_chars.map_or(usize::MAX, |chars| usize::try_from(chars).unwrap_or(usize::MAX));
        Ok(content::plain_run(call.caller, &*self.run_to_end(call, request).await?, shown))
    }

    pub(super) fn reset(&self, caller: &Caller, NoArguments {}: NoArguments) -> ToolResult {
        self.end_sessions(caller, &own_conversation(caller)?)?;
        Ok(content::plain("All variables are gone; the files in /data are still there.".to_owned(), false))
    }
}

/// A session that has ended meanwhile is no error.
fn ignore_missing(done: Result<(), Failure>) -> Result<(), Failure> {
    done.or_else(|failure| if failure.code == Code::SessionEnded { Ok(()) } else { Err(failure) })
}

fn cell(caller: &Caller, code: Program, language: Option<&str>) -> Result<RunRequest, Failure> {
    let language = language.map(str::parse).transpose().map_err(|why| Failure::argument("language", why))?;
    let request = RunRequest::new(caller.key(own_conversation(caller)?), language.unwrap_or_default(), code.0);
    Ok(RunRequest { session: Some(CellSession::Any), ..request })
}

/// The conversation of tools that name none.
pub(super) fn own_conversation(caller: &Caller) -> Result<ConversationId, Failure> {
    let own = caller.conversation.clone().map_or_else(|| shared_conversation(&caller.principal), Ok);
    own.map_err(|why| Failure::argument("conversationId", why))
}
