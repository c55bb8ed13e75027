//! Arguments of every kind, right and wrong: whatever is taken keeps the rules, and whatever is refused says why.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{
    create_run::CreateRun,
    known_run::{CancelRun, GetRun},
    *,
};
use crate::nouns::{limits::Limits, long::rounds};

const BYTES_MAX: u64 = 30;

/// A value as a client, or somebody who tries things, would send it.
fn value() -> impl Strategy<Value = Value> {
    let one = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[A-Za-z0-9._/%-]{0,40}".prop_map(Value::from),
        ".{0,40}".prop_map(Value::from),
        Just(json!("python")),
        Just(json!("base64")),
        Just(json!("run-01a1fe518e79729fa1f3ea1e9fc9dc95")),
    ];
    one.prop_recursive(2, 8, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::hash_map(name(), inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn name() -> impl Strategy<Value = String> {
    const NAMES: [&str; 17] = [
        "conversationId",
        "language",
        "code",
        "path",
        "pathEncoded",
        "content",
        "encoding",
        "offset",
        "args",
        "stdin",
        "wait",
        "detach",
        "limits",
        "wallMs",
        "runId",
        "afterEvent",
        "waitSeconds",
    ];
    prop_oneof![9 => proptest::sample::select(&NAMES[..]).prop_map(str::to_owned), 1 => ".{0,60}"]
}

fn arguments() -> impl Strategy<Value = Map<String, Value>> {
    let all = proptest::collection::hash_map(name(), value(), 0..6);
    all.prop_map(|members| members.into_iter().collect())
}

fn is_beneath(path: &SafePath) -> bool {
    path.components().all(|name| !matches!(name, b"" | b"." | b"..") && !name.contains(&0) && !name.contains(&b'/'))
}

/// A refusal has a sentence that misleads nobody, of a length that somebody reads.
fn well_told(failure: &Failure) -> bool {
    matches!(failure.code, Code::InvalidArgument | Code::TooLarge)
        && !failure.message.is_empty()
        && failure.message.chars().count() < 500
        && !failure.message.chars().any(char::is_control)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(256, 100_000)))]

    #[test]
    fn fuzz_arguments(members in arguments()) {
        let refused = [
            RunCode::parse(members.clone()).err(),
            ListFiles::parse(members.clone()).err(),
            parse_list_runners(members.clone()).err(),
            GetRun::parse(members.clone()).err(),
            CancelRun::parse(members.clone()).err(),
            CreateRun::parse(members.clone(), &Limits::default()).err(),
        ];
        let read = ReadFile::parse(members.clone());
        let written = WriteFile::parse(members.clone(), BYTES_MAX);
        let deleted = DeleteFile::parse(members);
        prop_assert!(read.as_ref().map_or(true, |read| is_beneath(&read.path)));
        prop_assert!(deleted.as_ref().map_or(true, |deleted| is_beneath(&deleted.path)));
        if let Ok(written) = &written {
            prop_assert!(is_beneath(&written.path) && written.content.len() as u64 <= BYTES_MAX);
        }
        let files = [read.err(), written.err(), deleted.err()];
        for failure in refused.into_iter().chain(files).flatten() {
            prop_assert!(well_told(&failure), "{failure:?}");
        }
    }
}
