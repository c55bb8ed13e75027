//! Packages of conversations, as clients ask for and see them.

use schemars::JsonSchema;
use serde::Deserialize;
use utoipa::ToSchema;

use super::answers;
use crate::{
    domain::{ConversationId, Language},
    services::packages,
};

/// Packages that a tool installs.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InstallPackages {
    pub conversation_id: ConversationId,
    /// The language that will use them.
    pub language: Language,
    /// Names, with or without versions: requests, pandas>=2; for npm lodash@^4.
    #[schemars(length(min = 1, max = 100))]
    pub packages: Vec<String>,
}

/// Packages to install into a conversation.
#[derive(Debug, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreatePackages {
    /// The language that will use them, or an alias of one; default python.
    #[schema(value_type = Option<String>, pattern = "^[A-Za-z0-9][A-Za-z0-9._+#-]*$", min_length = 1, max_length = 32)]
    pub language: Option<Language>,
    /// Names, with or without versions: `requests`, `pandas>=2`; for npm `lodash@^4`.
    #[schema(min_items = 1, max_items = 100, example = json!(["humanize"]))]
    pub packages: Vec<String>,
}

answers! {
    /// The packages that a conversation has now.
    #[derive(JsonSchema)]
    pub struct InstalledPackages(installed: &packages::Installed) {
        /// The program that installed them: uv or npm.
        tool: &'static str = installed.tool.word(),
        /// All packages that were requested in the conversation and their dependencies, with versions.
        packages: Vec<String> = installed.packages.clone(),
        /// Whether an earlier installation of the same packages for this owner was reused.
        reused: bool = installed.reused,
        /// Disk space of the packages, in bytes.
        bytes: u64 = installed.usage.bytes,
    }
}
