//! The names in paths, for the API's description: [`super::call::Call`] decodes them by hand.

use utoipa::IntoParams;

macro_rules! names {
    ($($of:ident { $($(#[$($about:tt)+])+ $name:ident: String,)+ })+) => {
        $(
            #[derive(IntoParams)]
            #[into_params(parameter_in = Path)]
            #[expect(dead_code, reason = "the names are decoded by hand")]
            pub(super) struct $of {
                $($(#[$($about)+])+ $name: String,)+
            }
        )+
    };
}

names! {
    InConversation {
        /// The conversation.
        #[param(rename = "conversationId", pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$", min_length = 1, max_length = 128)]
        conversation_id: String,
    }
    AtPath {
        /// The path below /data; percent-encoded; slashes between names may be encoded too.
        #[param(
            pattern = "^([^/\\u0000]*[^/.\\u0000][^/\\u0000]*|[.]{3,})\
            (/([^/\\u0000]*[^/.\\u0000][^/\\u0000]*|[.]{3,}))*$",
            min_length = 1
        )]
        path: String,
    }
    InRun {
        /// The run.
        #[param(rename = "runId", pattern = "^run-[0-9a-f]{32}$")]
        run_id: String,
    }
    InSession {
        /// The session.
        #[param(rename = "sessionId", pattern = "^session-[0-9a-f]{32}$")]
        session_id: String,
    }
    OfOwner {
        /// The owner.
        #[param(pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$", min_length = 1, max_length = 64)]
        owner: String,
        /// The owner's conversation.
        #[param(rename = "conversationId", pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$", min_length = 1, max_length = 128)]
        conversation_id: String,
    }
    OfSkill {
        /// The skill.
        #[param(pattern = "^[a-z0-9]+(-[a-z0-9]+)*$", min_length = 1, max_length = 64)]
        name: String,
    }
    OfTool {
        /// The server.
        #[param(pattern = "^[a-z][a-z0-9_]*$", min_length = 1, max_length = 32)]
        server: String,
        /// The tool, or its module's name.
        #[param(min_length = 1, max_length = 128)]
        tool: String,
    }
    OfServer {
        /// The server.
        #[param(pattern = "^[a-z][a-z0-9_-]*$", min_length = 1, max_length = 32)]
        name: String,
    }
    OfApproval {
        /// The question.
        #[param(pattern = "^[0-9a-f]{32}$")]
        id: String,
    }
    OfPolicy {
        /// The policy's name.
        #[param(pattern = "^[A-Za-z0-9_-]*$", min_length = 1, max_length = 32)]
        name: String,
    }
}
