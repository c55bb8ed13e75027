//! Any text and any names: a parsed path keeps the rules, and names that keep the rules are parsed.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, path::Component};

use bolero::{TypeGenerator, check, produce};
use percent_encoding::percent_decode;

use super::*;
use crate::domain::fuzz_support::cases;

/// The rules of [`SafePath`], written independently.
fn keep_the_rules(names: &[Vec<u8>]) -> bool {
    let one = |name: &Vec<u8>| {
        (1..=255).contains(&name.len())
            && name != b"."
            && name != b".."
            && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
    };
    (1..=32).contains(&names.len()) && names.iter().all(one) && names.join(&b'/').len() <= 4095
}

/// For the standard library too the path consists of names below the folder.
fn assert_below_data(path: &SafePath) {
    let whole = std::path::Path::new("/data").join(OsStr::from_bytes(path.as_bytes()));
    let below = whole.strip_prefix("/data").expect("below the folder");
    assert!(below.components().all(|name| matches!(name, Component::Normal(_))), "{path:?}");
    assert_eq!(below.components().count(), path.components().count());
}

fn split(text: &[u8]) -> Vec<Vec<u8>> {
    text.split(|&byte| byte == b'/').map(<[u8]>::to_vec).collect()
}

/// Checks a parser's result: these names, or an error when they break a rule.
fn assert_parsed(read: Result<SafePath, PathError>, names: &[Vec<u8>]) {
    assert_eq!(read.is_ok(), keep_the_rules(names), "{read:?} of {names:?}");
    if let Ok(path) = read {
        assert_eq!(path.as_bytes(), names.join(&b'/'));
        assert_below_data(&path);
        assert_round_trip(&path);
    }
}

/// The path survives percent-encoding and, if it needs none, its displayed form.
fn assert_round_trip(path: &SafePath) {
    let encoded = path.to_encoded();
    assert!(encoded.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~%/".contains(&byte)));
    assert_eq!(SafePath::from_encoded(&encoded).as_ref(), Ok(path));
    assert!(!path.display().chars().any(is_misleading));
    if !path.needs_encoding() {
        assert_eq!(SafePath::from_text(&path.display()).as_ref(), Ok(path));
    }
}

/// Any text, plain and percent-encoded.
#[test]
fn fuzz_texts() {
    check!().with_iterations(cases()).for_each(|bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let inside = text.strip_prefix("/data/").or_else(|| text.strip_prefix("./")).unwrap_or(&text);
        assert_parsed(SafePath::from_text(&text), &split(inside.as_bytes()));
        assert_parsed(SafePath::from_components(split(bytes)), &split(bytes));

        let two_digits = |rest: &[u8]| rest.get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let decodes = text.as_bytes().split(|&byte| byte == b'%').skip(1).all(two_digits);
        let names: Vec<_> =
            split(text.as_bytes()).iter().map(|name| percent_decode(name).collect::<Vec<u8>>()).collect();
        let read = SafePath::from_encoded(&text);
        if decodes {
            assert_parsed(read, &names);
        } else {
            assert!(read.is_err(), "{read:?}");
        }
    });
}

/// A name, mostly a valid one.
#[derive(Debug, TypeGenerator)]
enum Name {
    Bytes(#[generator(produce::<Vec<_>>().with().len(1..40_usize))] Vec<u8>),
    Text(String),
    Dots(#[generator(0..4_usize)] usize),
    Long(u8, #[generator(200..300_usize)] usize),
}

/// Names of every kind.
#[test]
fn fuzz_names() {
    let names = produce::<Vec<Name>>().with().len(0..36_usize);
    check!().with_iterations(cases()).with_generator(names).for_each(|names| {
        let names: Vec<_> = names.iter().map(Name::bytes).collect();
        assert_parsed(SafePath::from_components(&names), &names);
    });
}

impl Name {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Text(text) => text.clone().into_bytes(),
            Self::Dots(count) => vec![b'.'; *count],
            Self::Long(byte, count) => vec![*byte; *count],
        }
    }
}
