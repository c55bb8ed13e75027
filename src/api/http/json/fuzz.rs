//! Bodies of every kind: what passes is JSON, holds each key once and as many values as were counted.

use std::collections::HashSet;

use bolero::{TypeGenerator, check, produce};
use serde_json::Value;

use super::*;
use crate::domain::fuzz_support::cases;

const TWICE: &str = "the same key twice in one object";
const TOO_MANY: &str = "too many values";

/// Values of a tree, keys counted too.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(all) => all.iter().map(count).sum(),
        Value::Object(members) => members.values().map(|value| 1 + count(value)).sum(),
        _ => 0,
    }
}

fn verdict(body: &[u8], values_max: usize) -> Result<(), String> {
    let whole = read(body, values_max).map_err(|error| reason(&error));
    assert_eq!(whole.is_ok(), outline(body, values_max).is_ok());
    whole.map(drop)
}

/// Passes with room for so many values, and not with room for one less.
fn holds_exactly(body: &[u8], values: usize) {
    assert_eq!(verdict(body, values), Ok(()));
    assert_eq!(verdict(body, values - 1), Err(TOO_MANY.to_owned()));
}

/// Any bytes. A value that is counted twice, or not at all, makes the counts differ.
#[test]
fn fuzz_bodies() {
    check!().with_iterations(cases()).for_each(|body: &[u8]| {
        let parsed = serde_json::from_slice::<Value>(body);
        match verdict(body, usize::MAX) {
            Ok(()) => {
                let parsed = parsed.as_ref().expect("JSON");
                assert_eq!(read(body, usize::MAX).ok().as_ref(), Some(parsed));
                holds_exactly(body, count(parsed));
            }
            Err(why) => assert!(parsed.is_err() || [TWICE, RESERVED].contains(&why.as_str()), "{why}"),
        }
        if let Ok(value) = parsed {
            holds_exactly(value.to_string().as_bytes(), count(&value));
        }
    });
}

/// A body that may hold a key twice, and in two spellings.
#[derive(Debug, TypeGenerator)]
enum Sent {
    Word(#[generator(0..5_usize)] usize),
    Whole(i64),
    Real(f32),
    Text(String),
    List(#[generator(produce::<Vec<_>>().with().len(0..4_usize))] Vec<Sent>),
    Object(#[generator(produce::<Vec<_>>().with().len(0..4_usize))] Vec<(Key, Sent)>),
}

#[derive(Debug, TypeGenerator)]
struct Key {
    #[generator(0..16_u8)]
    digit: u8,
    escaped: bool,
}

impl Key {
    fn text(&self) -> String {
        if self.escaped { format!("\"\\u006b{:x}\"", self.digit) } else { format!("\"k{:x}\"", self.digit) }
    }
}

impl Sent {
    fn text(&self) -> String {
        match self {
            Self::Word(at) => ["null", "true", "false", "-0.5e+3", r#""\u0000\n""#][*at].to_owned(),
            Self::Whole(number) => number.to_string(),
            // A number that is none becomes null.
            Self::Real(number) => Value::from(*number).to_string(),
            Self::Text(text) => Value::from(text.as_str()).to_string(),
            Self::List(all) => format!("[{}]", all.iter().map(Self::text).collect::<Vec<_>>().join(" , ")),
            Self::Object(members) => {
                let members = members.iter().map(|(key, value)| format!("{} : {}", key.text(), value.text()));
                format!("{{ {} }}", members.collect::<Vec<_>>().join(","))
            }
        }
    }

    fn values(&self) -> usize {
        1 + match self {
            Self::List(all) => all.iter().map(Self::values).sum(),
            Self::Object(members) => members.iter().map(|(_, value)| 1 + value.values()).sum(),
            _ => 0,
        }
    }

    fn repeats_a_key(&self) -> bool {
        match self {
            Self::List(all) => all.iter().any(Self::repeats_a_key),
            Self::Object(members) => {
                let mut seen = HashSet::new();
                members.iter().any(|(key, value)| !seen.insert(key.digit) || value.repeats_a_key())
            }
            _ => false,
        }
    }
}

#[test]
fn fuzz_trees() {
    check!().with_iterations(cases()).with_type::<Sent>().for_each(|sent| {
        let body = sent.text();
        if sent.repeats_a_key() {
            assert_eq!(verdict(body.as_bytes(), usize::MAX), Err(TWICE.to_owned()));
        } else {
            holds_exactly(body.as_bytes(), sent.values());
        }
    });
}
