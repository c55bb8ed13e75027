//! The outside of a JSON-RPC message, checked before anything is made of its inside.
//!
//! serde would take a JSON array for a struct and the last of two equal keys; a tree of small values takes many times the
//! memory of its text. So the text is walked once without keeping anything.

use serde::{Deserialize, Deserializer};
use serde_json::{Value, error::Category, value::RawValue};

use super::refusal::Refusal;
use crate::api::http::json::{self, reason};

/// Values in one message, keys and values of objects counted one each: far above what any call of ours needs.
const VALUES_MAX: usize = 10_000;
/// The longest id that is echoed, in bytes of JSON.
const ID_BYTES_MAX: usize = 130;

/// What is known of a message before it is read.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Envelope {
    /// What is asked for.
    pub method: String,
    /// The request's id; nothing for a notification.
    pub id: Option<Value>,
}

#[derive(Deserialize)]
struct Members<'a> {
    #[serde(borrow, default)]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<&'a RawValue>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
}

/// A member that is there, even if it is null.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

impl Envelope {
    /// Reads the outside of a message.
    pub(super) fn read(body: &[u8]) -> Result<Self, Refusal> {
        walk(body)?;
        if body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
            return Err(Refusal::invalid(
                "The body is not one JSON object: send one message at a time, without a batch.",
            ));
        }
        let members: Members<'_> = serde_json::from_slice(body).map_err(|error| not_json(&error))?;
        let id = members.id.map(id).transpose()?;
        let refuse = |why: &str| Err(Refusal::invalid(why).with_id(id.clone()));
        let text = |raw: Option<&RawValue>| raw.and_then(|raw| serde_json::from_str::<String>(raw.get()).ok());
        if text(members.jsonrpc).as_deref() != Some("2.0") {
            return refuse("jsonrpc: it must be \"2.0\".");
        }
        let Some(method) = text(members.method) else {
            return refuse(
                "method: it must be the name of a method, such as \"tools/call\"; answers are not expected here.",
            );
        };
        if members.params.is_some_and(|params| !params.get().starts_with('{')) {
            return Err(Refusal::params("params: they must be an object.").with_id(id));
        }
        Ok(Self { method, id })
    }
}

/// An id is echoed exactly, so only forms that survive are taken.
fn id(raw: &RawValue) -> Result<Value, Refusal> {
    let refusal = || Refusal::invalid("id: it must be a string of at most 128 characters or a whole number.");
    let text = raw.get();
    if text.len() > ID_BYTES_MAX {
        return Err(refusal());
    }
    match serde_json::from_str::<Value>(text) {
        Ok(Value::String(text)) => Ok(Value::String(text)),
        Ok(Value::Number(number)) if number.as_i64().is_some_and(|whole| whole.to_string() == text) => {
            Ok(Value::Number(number))
        }
        _ => Err(refusal()),
    }
}

fn not_json(error: &serde_json::Error) -> Refusal {
    let place = format!("line {}, column {}", error.line(), error.column());
    match error.classify() {
        Category::Data => Refusal::invalid(format!("The body holds {} ({place}).", reason(error))),
        Category::Eof => Refusal::not_json("The body is not JSON: it ends too early."),
        Category::Syntax | Category::Io => Refusal::not_json(format!("The body is not JSON: see {place}.")),
    }
}

fn walk(body: &[u8]) -> Result<(), Refusal> {
    json::check(body, VALUES_MAX).map_err(|error| not_json(&error))
}

#[cfg(test)]
mod tests {
    use bolero::{check, produce};
    use serde_json::json;

    use super::*;
    use crate::domain::fuzz_support::{altered, cases};

    fn refused(body: &str) -> i64 {
        Envelope::read(body.as_bytes()).expect_err(body).rpc()
    }

    #[test]
    fn messages_of_every_kind_pass() {
        for (body, id) in [
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, Some(json!(1))),
            (r#" {"method":"ping","id":"a\u0062","jsonrpc":"2\u002e0","params":{}} "#, Some(json!("ab"))),
            (r#"{"jsonrpc":"2.0","method":"ping","params":null,"more":[1,{"a":null}]}"#, None),
            (r#"{"jsonrpc":"2.0","id":-9223372036854775808,"method":"ping"}"#, Some(json!(i64::MIN))),
        ] {
            assert_eq!(Envelope::read(body.as_bytes()), Ok(Envelope { method: "ping".to_owned(), id }), "{body}");
        }
    }

    #[test]
    fn what_is_not_json_is_a_parse_error() {
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        for body in [
            "",
            " ",
            "{",
            "nonsense",
            "{\"a\":}",
            "{'a':1}",
            "{\"a\":NaN}",
            "{\"a\":1e400}",
            "{\"a\":01}",
            "{}x",
            "{}{}",
            "\u{feff}{}",
            "{\"a\":\"\\ud800\"}",
            "{\"a\":\"\u{1}\"}",
            "{\"a\":1,}",
            "/**/{}",
            &deep,
        ] {
            assert_eq!(refused(body), -32700, "{body:?}");
        }
        assert_eq!(Envelope::read(b"{\"a\":\"\xff\"}").expect_err("no UTF-8").rpc(), -32700);
    }

    #[test]
    fn what_is_no_message_is_an_invalid_request() {
        let many = format!("{{\"a\":[{}0]}}", "0,".repeat(VALUES_MAX));
        let id = |id: &str| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"ping\"}}");
        let long = format!("\"{}\"", "x".repeat(129));
        let bodies = [
            "[]",
            "[1]",
            "1",
            "\"a\"",
            "null",
            "true",
            "{}",
            r#"["2.0",1,"ping"]"#,
            r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#,
            r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#,
            r#"{"jsonrpc":2.0,"id":1,"method":"ping"}"#,
            r#"{"id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":7}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":1,"\u0061":2}}"#,
            &many,
        ];
        for body in bodies {
            assert_eq!(refused(body), -32600, "{body:.80}");
        }
        for bad in ["null", "1.5", "1.0", "1e2", "-0", "9223372036854775808", "true", "[]", "{}", &long] {
            assert_eq!(refused(&id(bad)), -32600, "{bad}");
        }
        assert_eq!(refused(r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}"#), -32602);
    }

    /// What is taken says just that when it is read whole; what is refused is no JSON exactly when that is the reason.
    fn is_read_or_refused(body: &[u8]) {
        let whole = serde_json::from_slice::<Value>(body);
        match Envelope::read(body) {
            Ok(Envelope { method, id }) => {
                let whole = whole.expect("JSON");
                assert_eq!((&whole["jsonrpc"], &whole["method"]), (&json!("2.0"), &json!(method)));
                assert_eq!(whole.get("id"), id.as_ref());
                assert!(matches!(whole["params"], Value::Null | Value::Object(_)), "{whole}");
            }
            Err(refusal) if whole.is_err() => assert!([-32700, -32600].contains(&refusal.rpc()), "{refusal:?}"),
            Err(refusal) => assert!([-32600, -32602].contains(&refusal.rpc()), "{refusal:?}"),
        }
    }

    #[test]
    fn fuzz_messages() {
        check!().with_iterations(cases()).for_each(|body: &[u8]| is_read_or_refused(body));
    }

    #[test]
    fn fuzz_altered_messages() {
        const GOOD: &str =
            r#"{"jsonrpc":"2.0","id":-12,"method":"tools/call","params":{"name":"a","id":[1,"\u0061"]}}"#;
        let alterations = produce::<Vec<_>>().with().len(0..4_usize);
        check!()
            .with_iterations(cases())
            .with_generator(alterations)
            .for_each(|alterations| is_read_or_refused(&altered(GOOD, alterations)));
    }
}
