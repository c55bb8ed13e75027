//! Packages of conversations, as clients ask for and see them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    domain::id::{ConversationId, Language},
    services::packages,
};

/// What a tool installs.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InstallPackages {
    #[serde(rename = "conversationId")]
    pub conversation: ConversationId,
    /// Whose programs will use them.
    pub language: Language,
    /// Names, each with versions or without: requests, pandas>=2; for npm lodash@^4.
    #[schemars(length(min = 1, max = 100))]
    pub packages: Vec<String>,
}

/// What to install into a conversation.
#[derive(Debug, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreatePackages {
    /// The language whose programs will use them, or an alias of one; default python.
    #[schema(value_type = Option<String>, pattern = "^[A-Za-z0-9][A-Za-z0-9._+#-]*$", min_length = 1, max_length = 32)]
    pub language: Option<Language>,
    /// Names, each with versions or without: `requests`, `pandas>=2`; for npm `lodash@^4`.
    #[schema(min_items = 1, max_items = 100, example = json!(["requests"]))]
    pub packages: Vec<String>,
}

/// What a conversation has installed now.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstalledPackages {
    /// What installed them: uv or npm.
    pub tool: &'static str,
    /// Everything that was asked for in the conversation, and what it needs, with versions.
    pub packages: Vec<String>,
    /// The same was installed for this owner before, and was used again.
    pub reused: bool,
    /// The space that they take, in bytes.
    pub bytes: u64,
}

impl From<&packages::Installed> for InstalledPackages {
    fn from(installed: &packages::Installed) -> Self {
        let packages::Installed { tool, packages, reused, usage } = installed;
        Self { tool: tool.word(), packages: packages.clone(), reused: *reused, bytes: usage.bytes }
    }
}
