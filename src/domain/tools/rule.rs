//! Rules: whether a program may call a tool, and how often. The first rule that matches counts.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Schema, Tool};
use crate::domain::{owner::Principal, text::is_like};

/// Rules of one server, and the longest condition as JSON, in bytes.
const RULES_MAX: usize = 100;
const OWNERS_MAX: usize = 100;
const CONDITION_BYTES_MAX: usize = 8 << 10;

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    Allow,
    /// A person is asked, unless one has allowed it before.
    Ask,
    Deny,
}

/// A rule as it is written.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleText {
    /// The tool's name, with `*` for any characters.
    #[schema(max_length = 128)]
    pub tool: String,
    pub action: Action,
    /// The owners whose calls it is for; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub owners: Vec<String>,
    /// A JSON Schema: the rule is for calls whose arguments are valid by it.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub when: Option<Map<String, Value>>,
    /// Calls that the rule lets pass in one run or cell; more are refused.
    #[serde(default)]
    #[schema(minimum = 1)]
    pub per_run: Option<u32>,
    /// Calls of one owner that it lets pass in a minute; more are refused.
    #[serde(default)]
    #[schema(minimum = 1)]
    pub per_minute: Option<u32>,
}

/// A rule that can be used.
#[derive(Debug)]
pub struct Rule {
    pub text: RuleText,
    when: Option<Schema>,
}

/// What is wrong with the rules; a clause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error("there are more than {RULES_MAX} rules")]
    TooMany,
    #[error("rule {0}: `tool` must be a name of 1 to 128 characters, with `*` for any characters")]
    Tool(usize),
    #[error("rule {0}: `owners` must be at most {OWNERS_MAX} names")]
    Owners(usize),
    #[error("rule {0}: `per_run` and `per_minute` must be at least 1: use `deny` to refuse all calls")]
    Limit(usize),
    #[error("rule {0}: `when` is no JSON Schema that can be used: {1}")]
    Condition(usize, String),
}

impl Rule {
    /// # Errors
    /// What to correct; rules count from 1.
    pub fn parse_all(texts: &[RuleText]) -> Result<Vec<Self>, RuleError> {
        if texts.len() > RULES_MAX {
            return Err(RuleError::TooMany);
        }
        texts.iter().enumerate().map(|(at, text)| Self::parse(at + 1, text)).collect()
    }

    fn parse(at: usize, text: &RuleText) -> Result<Self, RuleError> {
        if text.tool.is_empty() || text.tool.chars().count() > super::TOOL_NAME_BYTES_MAX {
            return Err(RuleError::Tool(at));
        }
        if text.owners.len() > OWNERS_MAX || text.owners.iter().any(|owner| owner.parse::<Principal>().is_err()) {
            return Err(RuleError::Owners(at));
        }
        if text.per_run == Some(0) || text.per_minute == Some(0) {
            return Err(RuleError::Limit(at));
        }
        let condition = |when: &Map<String, Value>| {
            let schema = Value::Object(when.clone());
            if serde_json::to_vec(&schema).is_ok_and(|json| json.len() > CONDITION_BYTES_MAX) {
                return Err(RuleError::Condition(at, format!("it has more than {CONDITION_BYTES_MAX} bytes")));
            }
            Schema::new(&schema).map_err(|why| RuleError::Condition(at, why))
        };
        Ok(Self { text: text.clone(), when: text.when.as_ref().map(condition).transpose()? })
    }

    /// Those of its condition, as [`Schema::parts`].
    pub fn parts(&self) -> u64 {
        self.when.as_ref().map_or(0, Schema::parts)
    }

    /// Whether it is for this call of an owner. Arguments that cannot be checked get what is safe: no rule allows them
    /// by its condition, and those that deny or ask are for them.
    pub fn matches(&self, owner: &str, tool: &Tool, arguments: &Value) -> bool {
        let RuleText { tool: name, owners, action, .. } = &self.text;
        let is_for = owners.is_empty() || owners.iter().any(|one| one == owner);
        let is_when = |when: &Schema| when.is_valid(arguments).unwrap_or(*action != Action::Allow);
        is_for && is_like(name, &tool.name) && self.when.as_ref().is_none_or(is_when)
    }
}

/// What happens to a call for which there is no rule: where its definition says that it may destroy, a person is asked.
pub fn without_rule(tool: &Tool) -> Action {
    if tool.hints.may_destroy() { Action::Ask } else { Action::Allow }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(name: &str) -> Tool {
        Tool { name: name.into(), ..Tool::default() }
    }

    #[test]
    fn a_condition_is_on_the_arguments() {
        let text = json!({"tool": "delete_*", "action": "deny", "when": {"properties": {"path": {"pattern": "^/etc"}},
            "required": ["path"]}});
        let rules = Rule::parse_all(&[serde_json::from_value(text).expect("a rule")]).expect("rules");
        assert!(rules[0].matches("ann", &tool("delete_file"), &json!({"path": "/etc/passwd"})));
        assert!(!rules[0].matches("ann", &tool("delete_file"), &json!({"path": "/tmp/a"})));
        assert!(!rules[0].matches("ann", &tool("delete_file"), &json!({})));
        assert!(!rules[0].matches("ann", &tool("read_file"), &json!({"path": "/etc/passwd"})));
    }

    #[test]
    fn arguments_that_cannot_be_checked_are_allowed_by_no_condition() {
        let matches = |action: &str, when: &Value, arguments: &Value| {
            let text = json!({"tool": "*", "action": action, "when": when});
            let rules = Rule::parse_all(&[serde_json::from_value(text).expect("a rule")]).expect("rules");
            rules[0].matches("ann", &tool("read_file"), arguments)
        };
        let inside = json!({"properties": {"path": {"pattern": "^/tmp/"}}, "required": ["path"]});
        assert!(matches("allow", &inside, &json!({"path": "/tmp/a", "pad": vec![0; 100]})));
        for pad in [100, 10_000] {
            let arguments = json!({"path": "/etc/passwd", "pad": vec![0; pad]});
            assert!(!matches("allow", &inside, &arguments), "{pad}");
        }
        let outside = json!({"properties": {"path": {"pattern": "^/etc/"}}, "required": ["path"]});
        let nested = |levels: usize| (0..levels).fold(json!("/etc/"), |inner, _| json!({"path": inner}));
        let anywhere =
            json!({"anyOf": [{"pattern": "^/etc/"}, {"type": "null"}], "properties": {"path": {"$ref": "#"}}});
        for action in ["ask", "deny"] {
            assert!(matches(action, &outside, &json!({"path": "/etc/passwd", "pad": vec![0; 10_000]})), "{action}");
            assert!(!matches(action, &outside, &json!({"path": "/tmp/a"})), "{action}");
            assert!(matches(action, &anywhere, &nested(1000)), "{action}");
        }
        assert!(!matches("allow", &anywhere, &nested(1000)));
    }

    #[test]
    fn what_cannot_be_a_rule_is_refused_by_its_number() {
        let refused =
            |rule: Value| Rule::parse_all(&[serde_json::from_value(rule).expect("a rule")]).expect_err("refused");
        assert_eq!(refused(json!({"tool": "", "action": "deny"})), RuleError::Tool(1));
        assert_eq!(refused(json!({"tool": "*", "action": "allow", "per_run": 0})), RuleError::Limit(1));
        let condition = refused(json!({"tool": "*", "action": "allow", "when": {"$ref": "file:///etc/passwd"}}));
        assert!(matches!(condition, RuleError::Condition(1, _)), "{condition}");
    }
}
