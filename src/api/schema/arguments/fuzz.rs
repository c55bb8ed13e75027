//! Arguments of every kind, right and wrong: accepted ones keep the rules, and a refusal says why.

use bolero::{TypeGenerator, check, produce};
use serde_json::{Map, Value};

use super::{
    super::{
        parse::{Source, parse},
        run::CreateRun,
    },
    *,
};
use crate::domain::{Limits, fuzz_support::cases};

/// How much of an unknown name is repeated in an answer, in characters.
const NAME_CHARS_MAX: usize = 40;

const BYTES_MAX: u64 = 30;
const NAMES: [&str; 32] = [
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
    "stdinOpen",
    "wait",
    "detach",
    "limits",
    "wallMs",
    "runId",
    "afterEvent",
    "waitSeconds",
    "timeoutSeconds",
    "outputOffset",
    "folder",
    "cursor",
    "limit",
    "oldText",
    "newText",
    "replaceAll",
    "append",
    "command",
    "timeout",
    "max_output_chars",
    "package_name",
    "env",
];
const WORDS: [&str; 8] =
    ["python", "base64", "utf-8", "", "aGk=", "a/../b", "%2e%2e/x", "run-01a1fe518e79729fa1f3ea1e9fc9dc95"];

/// A value as a client or an attacker would send it.
#[derive(Debug, TypeGenerator)]
enum Sent {
    Null,
    Flag(bool),
    Whole(i64),
    Small(u8),
    Real(f64),
    Plain(#[generator(produce::<Vec<_>>().with().len(0..40_usize).values(0x20..0x7f_u8))] Vec<u8>),
    Text(String),
    Word(#[generator(0..WORDS.len())] usize),
    List(#[generator(produce::<Vec<_>>().with().len(0..4_usize))] Vec<Sent>),
    Object(#[generator(produce::<Vec<_>>().with().len(0..4_usize))] Vec<(Name, Sent)>),
}

#[derive(Debug, TypeGenerator)]
enum Name {
    Known(#[generator(0..NAMES.len())] usize),
    Wanted(#[generator(0..7_usize)] usize),
    Other(String),
}

impl Sent {
    fn value(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Flag(flag) => (*flag).into(),
            Self::Whole(number) => (*number).into(),
            Self::Small(number) => (*number).into(),
            Self::Real(number) => (*number).into(),
            Self::Plain(text) => String::from_utf8_lossy(text).into(),
            Self::Text(text) => text.as_str().into(),
            Self::Word(at) => WORDS[*at].into(),
            Self::List(all) => all.iter().map(Self::value).collect(),
            Self::Object(members) => Value::Object(object(members)),
        }
    }
}

fn object(members: &[(Name, Sent)]) -> Map<String, Value> {
    let name = |name: &Name| match name {
        Name::Known(at) | Name::Wanted(at) => NAMES[*at].to_owned(),
        Name::Other(text) => text.clone(),
    };
    members.iter().map(|(key, value)| (name(key), value.value())).collect()
}

fn is_beneath(path: &SafePath) -> bool {
    path.components().all(|name| !matches!(name, b"" | b"." | b"..") && !name.contains(&0) && !name.contains(&b'/'))
}

/// A refusal names the argument, known or sent, in a short sentence without control characters.
fn is_well_described(failure: &Failure, members: &Map<String, Value>) {
    let Failure { code, message, argument, .. } = failure;
    assert!(matches!(code, Code::InvalidArgument | Code::TooLarge), "{failure:?}");
    assert!(message.chars().count() < 500 && !message.chars().any(char::is_control), "{failure:?}");
    let shown = |name: &str| name.escape_debug().take(NAME_CHARS_MAX).collect::<String>();
    let limits = members.get("limits").and_then(Value::as_object);
    let inside = limits.into_iter().flat_map(Map::keys).map(|name| format!("limits.{}", shown(name)));
    let sent = members.keys().map(|name| shown(name)).chain(inside);
    let mut names = NAMES.map(str::to_owned).into_iter().chain(sent);
    // The path goes on below a list and below a map.
    let begins = |name: String| message.strip_prefix(&name).is_some_and(|rest| rest.starts_with([':', '[', '.']));
    assert!(names.any(begins), "{failure:?}");
    assert!(argument.as_ref().is_none_or(|name| message.starts_with(&format!("{name}: "))), "{failure:?}");
    assert_eq!(argument.is_some(), *code == Code::InvalidArgument, "{failure:?}");
}

fn are_accepted_or_refused(members: &Map<String, Value>) {
    let sent = || members.clone();
    let run = parse::<RunCode>(sent(), Source::Json).map(|run| assert!(!run.code.0.is_empty()));
    let read = parse(sent(), Source::Json)
        .and_then(|read: ReadFile| one_path(read.path.as_deref(), read.path_encoded.as_deref()));
    let deleted = parse(sent(), Source::Json)
        .and_then(|deleted: DeleteFile| one_path(deleted.path.as_deref(), deleted.path_encoded.as_deref()));
    let written = parse(sent(), Source::Json).and_then(|written: WriteFile| written.decode(BYTES_MAX));
    let written = written.map(|(_, path, content)| {
        assert!(content.len() as u64 <= BYTES_MAX);
        path
    });
    let edited = parse(sent(), Source::Json).map(|edited: EditFile| edited.path);
    let uploaded = parse(sent(), Source::Json).map(|uploaded: UploadUrl| uploaded.path);
    let paths = [read, deleted, written, edited, uploaded].map(|path| path.map(|path| assert!(is_beneath(&path))));
    let most = Limits::default();
    let created = parse(sent(), Source::Json).and_then(|run: CreateRun| {
        let limits = run.checked(&most)?;
        assert!(!run.code.0.is_empty() && run.args.iter().flatten().all(|text| !text.contains('\0')));
        assert!(limits.is_none_or(|own| own.wall_ms <= most.wall_ms && own.memory_bytes <= most.memory_bytes));
        Ok(())
    });
    let listed =
        [parse::<ListFiles>(sent(), Source::Json).map(drop), parse::<NoArguments>(sent(), Source::Json).map(drop)];
    let cells = [
        parse::<RunCell>(sent(), Source::Json).map(|cell| assert!(!cell.code.0.is_empty())),
        parse::<OfSessions>(sent(), Source::Json).map(drop),
        parse::<ExecuteCommand>(sent(), Source::Json).map(drop),
        parse::<ExecuteIpythonCell>(sent(), Source::Json).map(drop),
        parse::<InstallPackage>(sent(), Source::Json).map(drop),
    ];
    let known = [parse::<GetRun>(sent(), Source::Json).map(drop), parse::<CancelRun>(sent(), Source::Json).map(drop)];
    let all = [run, created].into_iter().chain(paths).chain(listed).chain(known).chain(cells);
    for failure in all.filter_map(Result::err) {
        is_well_described(&failure, members);
    }
}

#[test]
fn fuzz_arguments() {
    let members = produce::<Vec<_>>().with().len(0..6_usize);
    check!()
        .with_iterations(cases())
        .with_generator(members)
        .with_max_depth(4)
        .for_each(|members| are_accepted_or_refused(&object(members)));
}

/// Any bytes that are a JSON object.
#[test]
fn fuzz_argument_texts() {
    check!().with_iterations(cases()).for_each(|bytes: &[u8]| {
        if let Ok(members) = serde_json::from_slice(bytes) {
            are_accepted_or_refused(&members);
        }
    });
}
