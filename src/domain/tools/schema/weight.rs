//! Bounds the work that a schema can cause. By references, a short text can apply too many subschemas to one value, or
//! recurse deeper than the stack, so a schema is measured before a validator is built from it.

use std::collections::HashMap;

use serde_json::Value;

/// Subschemas of a schema, where each use of a reference counts as a copy of its target, and how deep they may be.
const SUBSCHEMAS_MAX: u64 = 50_000;
const DEPTH_MAX: usize = 256;
/// As how many of them a pattern counts: it has an automaton.
const PATTERN_PARTS: u64 = 500;
/// Keywords whose schemas are not about the value itself.
const OF_PARTS: [&str; 17] = [
    "$defs",
    "additionalItems",
    "additionalProperties",
    "const",
    "contains",
    "default",
    "definitions",
    "enum",
    "examples",
    "items",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "required",
    "unevaluatedItems",
    "unevaluatedProperties",
];

/// A schema that can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Weight {
    /// Subschemas, each of which a value may meet.
    pub(super) parts: u64,
    /// Levels of JSON through which it leads, each reference followed, and a recursive one once.
    pub(super) depth: usize,
    /// A part of it is checked by what it is a part of.
    pub(super) is_recursive: bool,
}

/// # Errors
/// Why the schema cannot be used.
pub(super) fn weigh(schema: &Value) -> Result<Weight, String> {
    let mut whole = Walk::of(schema, false);
    let (parts, depth) = whole.schema(schema, 0)?;
    let mut in_place = Walk::of(schema, true);
    for reference in whole.known.into_keys() {
        in_place.target(reference, 0)?;
    }
    Ok(Weight { parts, depth, is_recursive: whole.is_recursive })
}

struct Walk<'a> {
    root: &'a Value,
    /// Subschemas and depth by reference; `None` while it is followed.
    known: HashMap<&'a str, Option<(u64, usize)>>,
    is_recursive: bool,
    /// Only through what is about the value itself: a reference that leads back there never ends.
    in_place: bool,
    is_draft_4: bool,
}

impl<'a> Walk<'a> {
    fn of(root: &'a Value, in_place: bool) -> Self {
        let is_draft_4 = root.get("$schema").and_then(Value::as_str).is_some_and(|draft| draft.contains("draft-04"));
        Self { root, known: HashMap::new(), is_recursive: false, in_place, is_draft_4 }
    }

    /// Subschemas and depth of a part; `above` is the depth of what leads to it.
    fn schema(&mut self, schema: &'a Value, above: usize) -> Result<(u64, usize), String> {
        if above > DEPTH_MAX {
            return Err(too_deep());
        }
        let (mut count, mut depth) = (1_u64, 0);
        let mut add = |(more, deeper): (u64, usize)| {
            count = count.saturating_add(more);
            depth = depth.max(deeper + 1);
        };
        match schema {
            Value::Array(items) => {
                for item in items {
                    add(self.schema(item, above + 1)?);
                }
            }
            Value::Object(members) => {
                for (name, member) in members {
                    match (name.as_str(), member) {
                        ("pattern", Value::String(_)) => add((PATTERN_PARTS, 0)),
                        ("patternProperties", Value::Object(patterns)) if !self.in_place => {
                            add((PATTERN_PARTS.saturating_mul(patterns.len() as u64), 0));
                            add(self.schema(member, above + 1)?);
                        }
                        ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(reference)) => {
                            add(self.target(reference, above + 1)?);
                        }
                        (name, Value::String(_)) if self.renames(name) && !std::ptr::eq(schema, self.root) => {
                            return Err(format!("a part of it has a name of its own by `{name}`"));
                        }
                        (name, Value::Array(_) | Value::Object(_)) if !self.in_place || !OF_PARTS.contains(&name) => {
                            add(self.schema(member, above + 1)?);
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
        if count > SUBSCHEMAS_MAX {
            return Err(format!("with its references it has more than {SUBSCHEMAS_MAX} parts"));
        }
        Ok((count, depth))
    }

    /// Whether this keyword of a part changes what a reference means.
    fn renames(&self, name: &str) -> bool {
        matches!(name, "$id" | "$anchor" | "$dynamicAnchor") || name == "id" && self.is_draft_4
    }

    fn target(&mut self, reference: &'a str, above: usize) -> Result<(u64, usize), String> {
        match self.known.get(reference) {
            Some(Some((_, depth))) if above + depth > DEPTH_MAX => return Err(too_deep()),
            Some(Some(known)) => return Ok(*known),
            Some(None) if self.in_place => return Err("a reference in it leads back to itself".to_owned()),
            Some(None) => {
                self.is_recursive = true;
                return Ok((1, 0));
            }
            None => {}
        }
        let pointer = reference.strip_prefix('#').filter(|pointer| !pointer.contains('%'));
        let target = pointer.and_then(|pointer| self.root.pointer(pointer));
        let target = target.ok_or_else(|| "a reference leads outside of it, or to nothing in it".to_owned())?;
        self.known.insert(reference, None);
        let found = self.schema(target, above)?;
        self.known.insert(reference, Some(found));
        Ok(found)
    }
}

fn too_deep() -> String {
    format!("with its references it is deeper than {DEPTH_MAX} levels")
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    /// Definitions `a0`, `a1` and so on, each of which is made of the name of the next.
    fn chain(length: usize, link: impl Fn(&str) -> Value) -> Value {
        let next = |at: usize| link(&format!("#/$defs/a{}", at + 1));
        let mut definitions: Map<_, _> = (0..length).rev().map(|at| (format!("a{at}"), next(at))).collect();
        definitions.insert(format!("a{length}"), json!({"type": "string"}));
        json!({"$defs": definitions, "properties": {"a": {"$ref": "#/$defs/a0"}}})
    }

    #[test]
    fn usual_schemas_are_used() {
        let shared = json!({
            "$id": "https://example.com/schema",
            "$defs": {"a": {"type": "string"}},
            "properties": {"id": {"$ref": "#/$defs/a"}, "b": {"items": {"$ref": "#/$defs/a"}}},
            "examples": [{"id": "text"}],
        });
        assert_eq!(weigh(&shared).map(|weight| weight.is_recursive), Ok(false));
        let any = json!({"$ref": "#/$defs/any"});
        let recursive = json!({
            "$defs": {"any": {"anyOf": [{"type": "string"}, {"items": any}, {"additionalProperties": any}]}},
            "properties": {"a": any},
        });
        assert_eq!(weigh(&recursive).map(|weight| weight.is_recursive), Ok(true));
        assert!(weigh(&json!({"properties": {"child": {"$ref": "#"}}})).is_ok_and(|weight| weight.is_recursive));
        assert!(weigh(&Value::Bool(true)).is_ok());
    }

    #[test]
    fn references_that_multiply_work_are_refused() {
        for keyword in ["anyOf", "allOf"] {
            let twice = |next: &str| json!({keyword: [{"$ref": next}, {"$ref": next}]});
            assert!(weigh(&chain(5, twice)).is_ok());
            assert!(weigh(&chain(60, twice)).expect_err("refused").contains("parts"), "{keyword}");
        }
        // What is named last is measured first.
        let long = weigh(&chain(9000, |next| json!({"$ref": next}))).expect_err("refused");
        assert!(long.contains("deeper"), "{long}");
        let circle: Vec<_> = (0..8).map(|at| json!({"$ref": format!("#/$defs/a{at}")})).collect();
        let circle: Map<_, _> = (0..8).map(|at| (format!("a{at}"), json!({"anyOf": circle}))).collect();
        assert!(weigh(&json!({"$defs": circle})).expect_err("refused").contains("itself"));
    }

    #[test]
    fn references_to_what_is_not_measured_are_refused() {
        for reference in ["other.json#/a", "#anchor", "#/$defs/%61", "#/$defs/none"] {
            assert!(weigh(&json!({"$defs": {"%61": {}, "a": {}}, "$ref": reference})).is_err(), "{reference}");
        }
        for name in ["$id", "$anchor", "$dynamicAnchor"] {
            assert!(weigh(&json!({"$defs": {"a": {name: "b"}}})).is_err(), "{name}");
        }
        let draft = "http://json-schema.org/draft-04/schema#";
        assert!(weigh(&json!({"$schema": draft, "definitions": {"a": {"id": "b"}}})).is_err());
    }
}
