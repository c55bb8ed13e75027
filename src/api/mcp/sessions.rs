//! The tools for sessions, except for cells, which are runs: see [`super::waiting`].

use rmcp::model::CallToolResult;

use super::{Caller, McpParts, caller::ToolResult, content};
use crate::{
    api::schema::{arguments::OfSessions, session::SessionList},
    domain::{
        error::{Code, Failure},
        id::ConversationId,
    },
    services::sessions::SessionView,
};

impl McpParts {
    pub(super) async fn interrupt(&self, caller: &Caller, OfSessions { conversation: id }: OfSessions) -> ToolResult {
        let sessions = self.open_sessions(caller, &id);
        for session in &sessions {
            there(self.sessions.interrupt(&caller.principal, session.session).await)?;
        }
        Ok(content::sessions_changed(caller, sessions.len(), "Interrupted; variables are still there."))
    }

    pub(super) fn reset_session(&self, caller: &Caller, OfSessions { conversation: id }: OfSessions) -> ToolResult {
        let ended = self.end_sessions(caller, &id)?;
        Ok(content::sessions_changed(caller, ended, "All variables are gone; the files in /data are still there."))
    }

    pub(super) fn list_sessions(&self, caller: &Caller, OfSessions { conversation: id }: OfSessions) -> CallToolResult {
        let list = SessionList::from(&*self.open_sessions(caller, &id));
        content::said(caller, content::session_lines(&list), &list)
    }

    pub(super) fn open_sessions(&self, caller: &Caller, conversation: &ConversationId) -> Vec<SessionView> {
        self.sessions.list(&caller.principal, Some(conversation))
    }

    /// Ends the sessions of a conversation: the next cell opens a new one. How many there were.
    pub(super) fn end_sessions(&self, caller: &Caller, conversation: &ConversationId) -> Result<usize, Failure> {
        let sessions = self.open_sessions(caller, conversation);
        for session in &sessions {
            there(self.sessions.close(&caller.principal, session.session))?;
        }
        Ok(sessions.len())
    }
}

/// A session that has ended meanwhile is no error.
fn there(done: Result<(), Failure>) -> Result<(), Failure> {
    done.or_else(|failure| if failure.code == Code::SessionEnded { Ok(()) } else { Err(failure) })
}
