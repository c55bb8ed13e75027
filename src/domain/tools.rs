//! Tools of MCP servers, which programs may call: their names, definitions and rules, the records of calls, and the
//! questions to a person whether one may be made. Pure; no server is known here.

mod rule;
mod schema;
mod server;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::{
    rule::{Action, Rule, RuleError, RuleText, without_rule},
    schema::Schema,
    server::{Endpoint, ServerError, ServerText, ToolServer, secret_lines},
};
pub use super::id::ApprovalId;
use super::{id::shows_its_text, owner::ConversationKey, text, words::words};

/// The longest name of a tool, in bytes; a tool with a longer one is left out.
pub const TOOL_NAME_BYTES_MAX: usize = 128;

/// The name of a tool server, which is also a module's: 1 to 32 of `a-z 0-9 _`, a letter first, no keyword of Python.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct ServerName(String);

impl ServerName {
    const BYTES_MAX: usize = 32;

    /// `None` for what cannot be one. A hyphen becomes `_`.
    pub fn parse(name: &str) -> Option<Self> {
        let name = name.replace('-', "_");
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let is_name = name.starts_with(|c: char| c.is_ascii_lowercase()) && name.bytes().all(fits);
        (is_name && name.len() <= Self::BYTES_MAX && !KEYWORDS.contains(&name.as_str())).then_some(Self(name))
    }
}

shows_its_text!(ServerName);

/// Words that are no names of modules in Python or TypeScript. JavaScript calls what a module exports as `then` when it
/// imports the module.
const KEYWORDS: [&str; 48] = [
    "and", "as", "assert", "async", "await", "break", "case", "catch", "class", "const", "continue", "def", "default",
    "del", "delete", "do", "elif", "else", "enum", "except", "export", "extends", "false", "finally", "for", "from",
    "function", "global", "if", "import", "in", "is", "lambda", "new", "nonlocal", "not", "null", "or", "pass",
    "raise", "return", "then", "true", "try", "typeof", "while", "with", "yield",
];

/// What a server says that a call may do. Untrusted hints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hints {
    pub read_only_hint: Option<bool>,
    pub destructive_hint: Option<bool>,
}

impl Hints {
    /// As the protocol defines it: without hints a tool may destroy, and one that only reads does not.
    pub fn may_destroy(&self) -> bool {
        self.read_only_hint != Some(true) && self.destructive_hint != Some(false)
    }
}

/// A tool as its server defines it. All of it is untrusted.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Tool {
    pub name: String,
    pub title: Option<String>,
    pub description: String,
    /// A JSON Schema of an object.
    pub input: Value,
    pub output: Option<Value>,
    pub hints: Hints,
}

impl Tool {
    /// Names this definition: another one has another hash. `server` says where it comes from.
    pub fn hash(&self, server: &str) -> String {
        text::sha256(&serde_json::to_vec(&(server, self)).unwrap_or_default())
    }
}

/// The one text of a JSON value: members in the order of their names, no spaces.
pub fn canonical(value: &Value) -> String {
    let mut sorted = value.clone();
    sorted.sort_all_objects();
    sorted.to_string()
}

/// The names of a server's tools as modules: every character that a name cannot have becomes `_`, in lower case; a
/// keyword or a name that another has already gets `_2`, `_3` and so on, in the order of the tools.
pub fn module_names<'a>(tools: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut taken = std::collections::HashSet::new();
    let mut name = |tool: &str| {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
        let mut base: String = tool.chars().map(plain).collect();
        if !base.starts_with(|c: char| c.is_ascii_lowercase()) {
            base.insert_str(0, "tool_");
        }
        let mut name = base.clone();
        let mut count = 2;
        while KEYWORDS.contains(&name.as_str()) || !taken.insert(name.clone()) {
            name = format!("{base}_{count}");
            count += 1;
        }
        name
    };
    tools.into_iter().map(&mut name).collect()
}

words! {
    /// How a call ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum CallEnd: word {
        Answered = "answered",
        /// The tool said that it failed.
        Failed = "failed",
        /// A rule or a person said no.
        Denied = "denied",
        /// It was not made: no such tool, wrong arguments, a limit.
        Refused = "refused",
        /// The server is away, late, or broke the protocol.
        Unavailable = "unavailable",
        Cancelled = "cancelled",
    }
}

/// One call that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolUse {
    /// As the program wrote it, bounded.
    pub server: String,
    /// As its server names it; as the program wrote it, bounded, where no tool was found or the arguments are not
    /// valid.
    pub tool: String,
    pub end: CallEnd,
    /// Why it was not answered, for the program's author.
    pub why: Option<String>,
    /// SHA-256 of the canonical arguments, in hexadecimal digits.
    pub arguments_sha256: String,
    pub arguments_bytes: u64,
    pub took: Duration,
}

words! {
    /// What a person answered.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema, utoipa::ToSchema)]
    #[serde(rename_all = "lowercase")]
    pub enum Answered: word {
        /// This call, with these arguments, one time.
        Once = "once",
        /// This tool in this conversation, for an hour.
        Session = "session",
        /// This tool, until that is taken back or the tool's definition changes.
        Always = "always",
        No = "no",
    }
}

/// What is asked: exactly one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProposedCall {
    pub conversation: ConversationKey,
    pub server: String,
    pub tool: String,
    /// The hash of the tool's definition.
    pub definition: String,
    /// The canonical text of the arguments, which is what will be sent.
    pub arguments: String,
}

/// A question, and its answer where there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    pub id: ApprovalId,
    pub call: ProposedCall,
    pub asked_unix_ms: i64,
    pub answered: Option<Answered>,
    /// Who answered, and by what: `page`, `api`, `client`.
    pub answered_by: Option<String>,
    /// Until when the question can be answered, or the answer holds.
    pub expires_unix_ms: i64,
}

#[cfg(test)]
mod tests {
    use super::{Hints, ServerName, module_names};

    #[test]
    fn names_of_servers_are_names_of_modules() {
        for name in ["github", "git-hub", "a", "a1_b"] {
            assert!(ServerName::parse(name).is_some(), "{name}");
        }
        for name in ["", "1a", "A", "../x", "class", "a b", "a.b", &"a".repeat(33), "_a", "ä"] {
            assert!(ServerName::parse(name).is_none(), "{name}");
        }
    }

    #[test]
    fn names_of_modules_are_safe_and_differ() {
        let names = module_names(["a-b", "a.b", "GetX", "getx", "import", "1st", "", "../../etc", "a_b_2"]);
        assert_eq!(
            names,
            ["a_b", "a_b_2", "getx", "getx_2", "import_2", "tool_1st", "tool_", "tool_______etc", "a_b_2_2"]
        );
    }

    #[test]
    fn an_import_of_a_server_calls_no_tool() {
        assert_eq!(module_names(["then", "Then", "await"]), ["then_2", "then_3", "await_2"]);
    }

    #[test]
    fn a_tool_without_hints_may_destroy() {
        let hints = |read_only_hint, destructive_hint| Hints { read_only_hint, destructive_hint };
        assert!(hints(None, None).may_destroy());
        assert!(hints(Some(false), None).may_destroy());
        assert!(!hints(Some(true), Some(true)).may_destroy());
        assert!(!hints(None, Some(false)).may_destroy());
    }
}
