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
    check(body, values_max).map_err(|error| reason(&error))
}

/// Passes with room for so many values, and not with room for one less.
fn holds_exactly(body: &[u8], values: usize) {
    assert_eq!(verdict(body, values), Ok(()));
    assert_eq!(verdict(body, values - 1), Err(TOO_MANY.to_owned()));
}

/// Any bytes. A value that was read twice, or not at all, would make the counts differ.
#[test]
fn fuzz_bodies() {
    check!().with_iterations(cases()).for_each(|body: &[u8]| {
        let read = serde_json::from_slice::<Value>(body);
        match verdict(body, usize::MAX) {
            Ok(()) => holds_exactly(body, count(read.as_ref().expect("JSON"))),
            Err(why) => assert!(read.is_err() || [TWICE, RESERVED].contains(&why.as_str()), "{why}"),
        }
        if let Ok(value) = read {
            holds_exactly(value.to_string().as_bytes(), count(&value));
        }
    });
}

/// What somebody sends who may say a key twice, and in two spellings.
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

    fn says_a_key_twice(&self) -> bool {
        match self {
            Self::List(all) => all.iter().any(Self::says_a_key_twice),
            Self::Object(members) => {
                let mut seen = HashSet::new();
                members.iter().any(|(key, value)| !seen.insert(key.digit) || value.says_a_key_twice())
            }
            _ => false,
        }
    }
}

#[test]
fn fuzz_trees() {
    check!().with_iterations(cases()).with_type::<Sent>().for_each(|sent| {
        let body = sent.text();
        if sent.says_a_key_twice() {
            assert_eq!(verdict(body.as_bytes(), usize::MAX), Err(TWICE.to_owned()));
        } else {
            holds_exactly(body.as_bytes(), sent.values());
        }
    });
}
