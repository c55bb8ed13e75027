//! Untrusted JSON Schemas, to check arguments by.

mod weight;

use std::fmt;

use jsonschema::{Uri, Validator};
use serde_json::Value;

use self::weight::{Weight, weigh};

/// The longest schema as JSON, in bytes, and how deep it may be.
const BYTES_MAX: usize = 256 << 10;
const DEPTH_MAX: usize = 64;
/// How much of an error is shown, in characters.
const ERROR_CHARS_MAX: usize = 400;
/// How deep a recursive schema may lead: its own depth for each level of the value. The validator uses the stack.
const LEVELS_MAX: usize = 1024;
/// How often a value may meet a part of a schema in one check, which takes less than a second, and with how many all
/// errors are collected to report one: the alternatives of each value have some.
const STEPS_MAX: u64 = 2_000_000;
const EXPLAINED_STEPS_MAX: u64 = 100_000;
/// Bytes of a text that count as one value.
const TEXT_STEP_BYTES: usize = 64;
/// The largest automaton of a pattern.
const PATTERN_BYTES_MAX: usize = 128 << 10;

/// A schema that was made ready.
pub struct Schema {
    validator: Validator,
    weight: Weight,
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Schema")
    }
}

/// References lead nowhere but into the schema.
struct LocalReferences;

impl jsonschema::Retrieve for LocalReferences {
    fn retrieve(&self, uri: &Uri<String>) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
        Err(format!("`{uri}` is outside of the schema").into())
    }
}

impl Schema {
    /// # Errors
    /// Why it cannot be used.
    pub fn new(schema: &Value) -> Result<Self, String> {
        if depth(schema) > DEPTH_MAX {
            return Err(format!("it is deeper than {DEPTH_MAX} levels"));
        }
        if serde_json::to_vec(schema).is_ok_and(|json| json.len() > BYTES_MAX) {
            return Err(format!("it has more than {BYTES_MAX} bytes"));
        }
        let weight = weigh(schema).map_err(|why| bounded(&why))?;
        let made = jsonschema::options()
            .with_retriever(LocalReferences)
            .should_ignore_unknown_formats(true)
            .should_validate_formats(false)
            .with_pattern_options(jsonschema::PatternOptions::regex().size_limit(PATTERN_BYTES_MAX))
            .build(schema);
        let validator = made.map_err(|error| bounded(&error.to_string()))?;
        Ok(Self { validator, weight })
    }

    /// As how much it counts where schemas are kept: its memory grows with it.
    pub fn parts(&self) -> u64 {
        self.weight.parts
    }

    /// Whether the value is valid; `None` where it is too deep or too large to be checked.
    pub fn is_valid(&self, value: &Value) -> Option<bool> {
        let can_check = !self.is_too_deep(value) && self.steps(value) <= STEPS_MAX;
        can_check.then(|| self.validator.is_valid(value))
    }

    fn is_too_deep(&self, value: &Value) -> bool {
        let Weight { depth: levels, is_recursive, .. } = self.weight;
        is_recursive && depth(value).saturating_mul(levels) > LEVELS_MAX
    }

    fn steps(&self, value: &Value) -> u64 {
        size(value).saturating_mul(self.weight.parts)
    }

    /// A value that is too large for the schema to be checked in short time passes: the tool's server checks it.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        if self.is_too_deep(value) {
            return Err("it is nested too deeply to be checked".to_owned());
        }
        let steps = self.steps(value);
        if steps > STEPS_MAX {
            return Ok(());
        }
        let is_recursive = self.weight.is_recursive;
        // Errors of all alternatives are collected, and each level of recursion can multiply them.
        if is_recursive || steps > EXPLAINED_STEPS_MAX {
            let kind = if is_recursive { "recursive" } else { "large" };
            let is_valid = self.validator.is_valid(value);
            return is_valid.then_some(()).ok_or_else(|| format!("it does not fit the {kind} schema"));
        }
        self.validator.validate(value).map_err(|error| {
            let path = error.instance_path().to_string();
            let path = if path.is_empty() { String::new() } else { format!(" (at {path})") };
            bounded(&format!("{}{path}", error.masked()))
        })
    }
}

fn bounded(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(ERROR_CHARS_MAX).collect()
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// The values in a value, with those of its texts that are long.
fn size(value: &Value) -> u64 {
    let text = |text: &str| (text.len() / TEXT_STEP_BYTES) as u64;
    let inside: u64 = match value {
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(members) => members.iter().map(|(name, member)| text(name) + size(member)).sum(),
        Value::String(value) => text(value),
        _ => 0,
    };
    1 + inside
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::Schema;

    #[test]
    fn references_lead_nowhere_else() {
        for uri in ["file:///etc/passwd", "http://127.0.0.1/schema", "https://example.com/schema"] {
            let why = Schema::new(&json!({"$ref": uri})).expect_err("refused");
            assert!(why.contains("outside") || why.contains("resource"), "{why}");
        }
        let own = Schema::new(&json!({"$defs": {"a": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/a"}}}));
        let own = own.expect("a schema");
        assert!(own.check(&json!({"a": "text"})).is_ok());
        assert!(own.check(&json!({"a": 1})).expect_err("refused").contains("/a"));
    }

    #[test]
    fn deep_and_recursive_schemas_do_no_harm() {
        let mut deep = json!({"type": "object"});
        for _ in 0..500 {
            deep = json!({"properties": {"a": deep}});
        }
        assert!(Schema::new(&deep).is_err());
        let circle = json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"});
        // It may be refused, or allow anything; it ends.
        if let Ok(schema) = Schema::new(&circle) {
            let _ = schema.check(&json!({}));
        }
        // Without a bound a check would take years, or more than the stack.
        let twice =
            |at: usize| json!({"anyOf": [{"$ref": format!("#/$defs/a{at}")}, {"$ref": format!("#/$defs/a{at}")}]});
        let mut definitions: serde_json::Map<_, _> = (0..60).map(|at| (format!("a{at}"), twice(at + 1))).collect();
        definitions.insert("a60".to_owned(), json!({"type": "string"}));
        assert!(Schema::new(&json!({"$defs": definitions, "properties": {"a": {"$ref": "#/$defs/a0"}}})).is_err());
        let alternative = json!({"properties": {"a": {"$ref": "#"}}, "additionalProperties": false});
        let recursive = Schema::new(&json!({"anyOf": [alternative, alternative]})).expect("a schema");
        let nested = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!({"a": inner}));
        assert!(recursive.check(&nested(40)).is_ok());
        let wrong = (0..40).fold(json!({"b": 1}), |inner, _| json!({"a": inner}));
        assert!(recursive.check(&wrong).expect_err("refused").contains("recursive"));
        assert!(recursive.check(&nested(200)).expect_err("refused").contains("nested"));
        // A pattern that takes a backtracking engine years.
        let slow = Schema::new(&json!({"type": "string", "pattern": "^(a+)+$"})).expect("a schema");
        assert!(slow.check(&json!(format!("{}b", "a".repeat(100_000)))).is_err());
    }

    #[test]
    fn large_arguments_cost_bounded_work() {
        let alternative = |number: usize| json!({"properties": {"a": {"const": number}}, "required": ["b"]});
        let alternatives = |count: usize| (0..count).map(alternative).collect::<Value>();
        let list = |count: usize| (0..count).map(|_| json!({"a": 0})).collect::<Value>();
        let schema = Schema::new(&json!({"items": {"anyOf": alternatives(2000)}})).expect("a schema");
        // A message of a program can have as many; their errors alone would take all memory.
        assert_eq!(schema.check(&list(100_000)), Ok(()));
        assert!(schema.check(&list(20)).expect_err("refused").contains("large schema"));
        let schema = Schema::new(&json!({"items": {"anyOf": alternatives(2)}})).expect("a schema");
        assert!(schema.check(&list(20)).expect_err("refused").contains("(at /0"));
        // A text takes an automaton as long as it is.
        let schema = Schema::new(&json!({"pattern": "^(a?){50}$", "type": "string"})).expect("a schema");
        assert_eq!(schema.check(&json!("a".repeat(1 << 20))), Ok(()));
        assert!(schema.check(&json!("a".repeat(100))).is_err());
    }

    #[test]
    fn patterns_are_few_and_their_automata_small() {
        let patterns = |count: usize, pattern: &str| {
            let one = |number: usize| json!({"pattern": format!("{number}{pattern}")});
            Schema::new(&json!({"allOf": (0..count).map(one).collect::<Value>()}))
        };
        assert!(patterns(50, "[a-z]+").is_ok());
        assert!(patterns(1000, "[a-z]+").expect_err("refused").contains("parts"));
        assert!(patterns(1, "(a|bc{1000}){100}").is_err());
        let names: serde_json::Map<_, _> = (0..1000).map(|number| (format!("^{number}"), json!({}))).collect();
        assert!(Schema::new(&json!({"patternProperties": names})).expect_err("refused").contains("parts"));
    }
}
