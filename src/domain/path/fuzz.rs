//! Whatever text or names: what becomes a path keeps the rules, and what keeps the rules becomes one.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, path::Component};

use bolero::{TypeGenerator, check, produce};
use percent_encoding::percent_decode;

use super::*;
use crate::domain::fuzz_support::cases;

/// The rules of [`SafePath`], once more and one by one.
fn keep_the_rules(names: &[Vec<u8>]) -> bool {
    let one = |name: &Vec<u8>| {
        (1..=255).contains(&name.len())
            && name != b"."
            && name != b".."
            && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
    };
    (1..=32).contains(&names.len()) && names.iter().all(one) && names.join(&b'/').len() <= 4095
}

/// As the standard library sees it: names only, below the folder.
fn stays(path: &SafePath) {
    let whole = std::path::Path::new("/data").join(OsStr::from_bytes(path.as_bytes()));
    let below = whole.strip_prefix("/data").expect("below the folder");
    assert!(below.components().all(|name| matches!(name, Component::Normal(_))), "{path:?}");
    assert_eq!(below.components().count(), path.components().count());
}

fn split(text: &[u8]) -> Vec<Vec<u8>> {
    text.split(|&byte| byte == b'/').map(<[u8]>::to_vec).collect()
}

/// Checks a reader's answer: these names, or none where they break a rule.
fn is_read_as(read: Result<SafePath, PathError>, names: &[Vec<u8>]) {
    assert_eq!(read.is_ok(), keep_the_rules(names), "{read:?} of {names:?}");
    if let Ok(path) = read {
        assert_eq!(path.as_bytes(), names.join(&b'/'));
        stays(&path);
        survives(&path);
    }
}

/// It is the same after a journey in a link and, where it is plain, after having been shown.
fn survives(path: &SafePath) {
    let encoded = path.to_encoded();
    assert!(encoded.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~%/".contains(&byte)));
    assert_eq!(SafePath::from_encoded(&encoded).as_ref(), Ok(path));
    assert!(!path.display().chars().any(misleads));
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
        is_read_as(SafePath::from_text(&text), &split(inside.as_bytes()));
        is_read_as(SafePath::from_components(split(bytes)), &split(bytes));

        let two_digits = |rest: &[u8]| rest.get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let decodes = text.as_bytes().split(|&byte| byte == b'%').skip(1).all(two_digits);
        let names: Vec<_> =
            split(text.as_bytes()).iter().map(|name| percent_decode(name).collect::<Vec<u8>>()).collect();
        let read = SafePath::from_encoded(&text);
        if decodes {
            is_read_as(read, &names);
        } else {
            assert!(read.is_err(), "{read:?}");
        }
    });
}

/// A name, mostly a good one.
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
        is_read_as(SafePath::from_components(&names), &names);
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
