//! Messages of every kind, and bodies that are none.

use bolero::{check, produce};
use serde_json::json;

use super::*;
use crate::domain::fuzz_support::{cases, mutated};

fn refused(body: &str) -> i64 {
    Envelope::read(body.as_bytes()).expect_err(body).rpc.expect("JSON-RPC").code
}

#[test]
fn valid_messages_of_every_kind_are_accepted() {
    for (body, id) in [
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, Some(json!(1))),
        (r#" {"method":"ping","id":"a\u0062","jsonrpc":"2\u002e0","params":{}} "#, Some(json!("ab"))),
        (r#"{"jsonrpc":"2.0","method":"ping","params":null,"more":[1,{"a":null}]}"#, None),
        (r#"{"jsonrpc":"2.0","id":-9223372036854775808,"method":"ping"}"#, Some(json!(i64::MIN))),
    ] {
        assert_eq!(Envelope::read(body.as_bytes()), Ok(Envelope { method: Some("ping".to_owned()), id }), "{body}");
    }
}

#[test]
fn answers_have_no_method() {
    for body in [r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, r#"{"jsonrpc":"2.0","id":1,"error":{"code":1}}"#] {
        let answer = Envelope { method: None, id: Some(json!(1)) };
        assert_eq!(Envelope::read(body.as_bytes()), Ok(answer), "{body}");
    }
}

#[test]
fn only_the_arguments_of_a_call_may_be_long() {
    let long = "x".repeat(KEPT_BYTES_MAX);
    let call = |params: Value| json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let client = json!({"clientInfo": {"name": long, "version": "1"}});
    for (message, is_read) in [
        (call(json!({"name": "a", "arguments": {"code": long}})), true),
        (call(json!({"name": "a", "arguments": {}, "_meta": {"b": long}})), false),
        (call(json!({"name": long})), false),
        (json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}), false),
        (json!({"jsonrpc": "2.0", "id": 1, "result": {"content": {"value": long}}}), true),
    ] {
        let body = message.to_string();
        assert_eq!(Envelope::read(body.as_bytes()).is_ok(), is_read, "{body:.80}");
    }
}

#[test]
fn invalid_json_is_a_parse_error() {
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
    assert_eq!(Envelope::read(b"{\"a\":\"\xff\"}").expect_err("no UTF-8").rpc.expect("JSON-RPC").code, -32700);
}

#[test]
fn json_that_is_no_message_is_an_invalid_request() {
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
        r#"{"jsonrpc":"2.0","result":{}}"#,
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
        Err(error) => {
            let possible = if whole.is_err() { [-32700, -32600] } else { [-32600, -32602] };
            assert!(error.rpc.as_ref().is_some_and(|rpc| possible.contains(&rpc.code)), "{error:?}");
        }
    }
}

#[test]
fn fuzz_messages() {
    check!().with_iterations(cases()).for_each(|body: &[u8]| is_read_or_refused(body));
}

#[test]
fn fuzz_altered_messages() {
    const GOOD: &str = r#"{"jsonrpc":"2.0","id":-12,"method":"tools/call","params":{"name":"a","id":[1,"\u0061"]}}"#;
    let alterations = produce::<Vec<_>>().with().len(0..4_usize);
    check!()
        .with_iterations(cases())
        .with_generator(alterations)
        .for_each(|alterations| is_read_or_refused(&mutated(GOOD, alterations)));
}
