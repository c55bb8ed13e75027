//! A tool server as it is written in the settings or sent by an operator.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use url::Url;

use super::{Rule, RuleError, RuleText, ServerName};
use crate::domain::{ConversationId, ConversationKey, Language, Principal, text::shown};

/// What stands for the server's secret in headers and variables.
const PLACEHOLDER: &str = "{secret}";
const OWNERS_MAX: usize = 100;
const WORDS_MAX: usize = 100;
const TEXT_BYTES_MAX: usize = 4096;
const DESCRIPTION_CHARS_MAX: usize = 500;
/// How long one call may take, in seconds: by default, and at most.
const CALL_S: u64 = 60;
const CALL_S_MAX: u64 = 3600;

const SECRET_LINE_BYTES_MIN: usize = 8;

/// The beginning of the conversation that has the files of a server in a sandbox; its name follows.
const CONVERSATION: &str = "tools-";

/// A tool server as it is written: `url`, `command`, or `command` in an `image`.
#[serde_with::skip_serializing_none]
#[serde_with::apply(
    String => #[serde(skip_serializing_if = "String::is_empty")],
    Vec => #[serde(skip_serializing_if = "Vec::is_empty")],
    BTreeMap => #[serde(skip_serializing_if = "BTreeMap::is_empty")],
)]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServerText {
    /// Of an MCP server over Streamable HTTP.
    #[schema(max_length = 4096)]
    pub url: String,
    /// For each request to `url`; `{secret}` in a value is the server's secret.
    pub headers: BTreeMap<String, String>,
    /// A program and its arguments: in a sandbox of its own where there is an `image`, and otherwise of the server's
    /// machine, which only the settings can name.
    pub command: Vec<String>,
    /// The language whose runner image has the command.
    #[schema(max_length = 64)]
    pub image: String,
    /// The network policies of the command in an image; without any it has no network.
    #[schema(max_items = 100)]
    pub network: Vec<String>,
    /// Variables of the command; `{secret}` in a value is the server's secret.
    pub env: BTreeMap<String, String>,
    /// What it is for, for models.
    #[schema(max_length = 500)]
    pub description: String,
    /// The owners whose programs may call it; empty: all.
    #[schema(max_items = 100)]
    pub owners: Vec<String>,
    /// The first that matches a call counts. Without one a person is asked where the tool may destroy, by its
    /// definition, and other calls pass.
    #[schema(max_items = 100)]
    pub rules: Vec<RuleText>,
    /// How long one call may take, in seconds; 60 where it is not set.
    #[schema(minimum = 1, maximum = 3600)]
    pub call_seconds: Option<u64>,
}

/// How a server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    Url(Url),
    /// A program and its arguments.
    Command(String, Vec<String>),
    /// A command in a sandbox of its own, in the image of this language.
    Sandbox(Language),
}

/// A tool server that can be used.
#[derive(Debug)]
pub struct ToolServer {
    pub name: ServerName,
    pub text: ServerText,
    pub endpoint: Endpoint,
    pub rules: Vec<Rule>,
}

/// What is wrong with a tool server; a clause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerError {
    #[error("the name `{0}` must be 1 to 32 of `a-z 0-9 _ -`, a letter first, and no keyword of Python or JavaScript")]
    Name(String),
    #[error("give `url`, or `command`, or `image` and `command`")]
    Endpoint,
    #[error("`image` must be a language that has a runner, such as python")]
    Image,
    #[error("`url` must be an address such as https://mcp.example.com/mcp, without a name or password in it")]
    Url,
    #[error("`{0}` is too long, or has what it cannot have")]
    Text(&'static str),
    #[error("`call_seconds` must be 1 to {CALL_S_MAX}")]
    CallSeconds,
    #[error("{0}")]
    Rules(#[from] RuleError),
}

impl ToolServer {
    /// # Errors
    /// What to correct.
    pub fn parse(name: &str, text: &ServerText) -> Result<Self, ServerError> {
        let name = ServerName::parse(name).ok_or_else(|| ServerError::Name(shown(name)))?;
        let endpoint = match (text.url.is_empty(), text.command.as_slice(), text.image.is_empty()) {
            (false, [], true) => Endpoint::Url(text.address().ok_or(ServerError::Url)?),
            (true, [program, arguments @ ..], true) => Endpoint::Command(program.clone(), arguments.to_vec()),
            (true, [_, ..], false) => Endpoint::Sandbox(text.image.parse().map_err(|_| ServerError::Image)?),
            _ => return Err(ServerError::Endpoint),
        };
        let has_url = matches!(endpoint, Endpoint::Url(_));
        let fits = |text: &str| text.len() <= TEXT_BYTES_MAX && !text.contains(['\0', '\r', '\n']);
        let is_token = |name: &str| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        let all_fit = |of: &BTreeMap<String, String>| {
            of.len() <= WORDS_MAX && of.iter().all(|(name, value)| is_token(name) && fits(name) && fits(value))
        };
        let wrong = [
            ("headers", !all_fit(&text.headers) || !has_url && !text.headers.is_empty()),
            ("env", !all_fit(&text.env) || has_url && !text.env.is_empty()),
            ("command", text.command.len() > WORDS_MAX || !text.command.iter().all(|word| fits(word))),
            ("network", text.network.len() > WORDS_MAX || text.image.is_empty() && !text.network.is_empty()),
            ("description", text.description.chars().count() > DESCRIPTION_CHARS_MAX),
            ("owners", text.owners.len() > OWNERS_MAX || !text.owners.iter().all(|owner| fits(owner))),
        ];
        if let Some((field, _)) = wrong.into_iter().find(|(_, wrong)| *wrong) {
            return Err(ServerError::Text(field));
        }
        if text.call_seconds.is_some_and(|seconds| !(1..=CALL_S_MAX).contains(&seconds)) {
            return Err(ServerError::CallSeconds);
        }
        Ok(Self { name, text: text.clone(), endpoint, rules: Rule::parse_all(&text.rules)? })
    }

    /// Whether programs of this owner may call it.
    pub fn is_for(&self, owner: &str) -> bool {
        self.text.owners.is_empty() || self.text.owners.iter().any(|name| name == owner)
    }

    pub fn call_max(&self) -> std::time::Duration {
        std::time::Duration::from_secs(self.text.call_seconds.unwrap_or(CALL_S))
    }

    /// What says where its tools come from: tools from another address are other tools, whatever their names.
    pub fn identity(&self) -> String {
        let ServerText { url, image, command, .. } = &self.text;
        format!("{url} {image} {}", command.join(" "))
    }

    /// The conversation whose files a server in a sandbox has: of its owner where it has one, and otherwise of the
    /// server's.
    pub fn conversation(&self) -> ConversationKey {
        let owner = match self.text.owners.as_slice() {
            [owner] => owner.parse().unwrap_or_default(),
            _ => Principal::default(),
        };
        let id = format!("{CONVERSATION}{}", self.name);
        ConversationKey::new(owner, id.parse().unwrap_or_else(|_| ConversationId::fresh()))
    }
}

impl ServerText {
    /// The address, where there is one that can be used.
    fn address(&self) -> Option<Url> {
        let url = Url::parse(&self.url).ok()?;
        let is_web = matches!(url.scheme(), "http" | "https") && url.has_host();
        (is_web && url.username().is_empty() && url.password().is_none() && self.url.len() <= TEXT_BYTES_MAX)
            .then_some(url)
    }

    /// Headers or variables with the secret in its place.
    pub fn filled(values: &BTreeMap<String, String>, secret: &str) -> Vec<(String, String)> {
        values.iter().map(|(name, value)| (name.clone(), value.replace(PLACEHOLDER, secret))).collect()
    }
}

/// The lines of a secret, such as a key in PEM: a server that prints it is logged by the line. Short ones, such as a
/// bracket, stand in other texts too.
pub fn secret_lines(secret: &str) -> impl Iterator<Item = &str> {
    secret.lines().map(str::trim).filter(|line| line.len() >= SECRET_LINE_BYTES_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(json: serde_json::Value) -> ServerText {
        serde_json::from_value(json).expect("a server")
    }

    #[test]
    fn a_server_has_one_way() {
        let url = text(serde_json::json!({"url": "https://mcp.example.com/mcp"}));
        assert_eq!(ToolServer::parse("git-hub", &url).expect("a server").name.as_str(), "git_hub");
        let both = text(serde_json::json!({"url": "https://mcp.example.com", "command": ["a"]}));
        assert_eq!(ToolServer::parse("a", &both).expect_err("refused"), ServerError::Endpoint);
        assert_eq!(ToolServer::parse("a", &ServerText::default()).expect_err("refused"), ServerError::Endpoint);
        for url in ["ftp://a", "https://user:secret@a/", "no address", "https://"] {
            let text = ServerText { url: url.to_owned(), ..ServerText::default() };
            assert_eq!(ToolServer::parse("a", &text).expect_err("refused"), ServerError::Url, "{url}");
        }
        assert!(matches!(ToolServer::parse("../x", &url), Err(ServerError::Name(_))));
    }

    #[test]
    fn a_secret_stands_in_headers() {
        let headers = [("Authorization".to_owned(), "Bearer {secret}".to_owned())].into();
        assert_eq!(ServerText::filled(&headers, "abc"), [("Authorization".to_owned(), "Bearer abc".to_owned())]);
    }
}
