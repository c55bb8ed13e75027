//! The envelope of JSON-RPC: that of a message (`jsonrpc`, `id`, `method`) is checked before rmcp reads its parameters,
//! and refusals, also rmcp's own, get the form that its clients can read.

use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use http_body_util::{BodyExt, Limited};
use serde::Deserialize;
use serde_json::{Value, error::Category, value::RawValue};

use crate::{
    api::{
        http::{
            error::{ApiError, RpcError, keep_headers},
            json,
        },
        mcp::ID_CHARS_MAX,
    },
    domain::error::{Code, Failure},
};

const PARSE_ERROR: i64 = -32700;
pub(super) const INVALID_REQUEST: i64 = -32600;
const INVALID_PARAMS: i64 = -32602;
const INTERNAL_ERROR: i64 = -32603;
/// MCP's own code, since 2026-07-28.
pub(super) const HEADER_MISMATCH: i64 = -32020;
/// How much of a sentence of rmcp is passed on, in bytes.
const SENTENCE_BYTES_MAX: usize = 4096;

/// Values in one message, keys and values of objects counted one each: far above what any call of ours needs.
const VALUES_MAX: usize = 10_000;
/// What a request may hold beside the arguments of a call, in bytes. A session keeps what its client says of itself,
/// and each call its `_meta`, for as long as they last, when the memory of the body was given back.
const KEPT_BYTES_MAX: usize = 128 << 10;

/// What is known of a message before rmcp reads it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Envelope {
    /// `None` for the answer to a request of this server.
    pub method: Option<String>,
    /// The request's id; `None` for a notification.
    pub id: Option<Value>,
}

impl Envelope {
    pub(super) fn read(body: &[u8]) -> Result<Self, ApiError> {
        let Value::Object(mut members) = outline(body)? else {
            let why = "The body is not one JSON object: send one message at a time, without a batch.";
            return Err(refusal(INVALID_REQUEST, None, why));
        };
        let id = members.remove("id");
        if !id.as_ref().is_none_or(is_echoed) {
            let why = format!("id: it must be a string of at most {ID_CHARS_MAX} characters or a whole number.");
            return Err(refusal(INVALID_REQUEST, None, why));
        }
        let refuse = |rpc, why| Err(refusal(rpc, id.as_ref(), why));
        if members.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
            return refuse(INVALID_REQUEST, "jsonrpc: it must be \"2.0\".");
        }
        let method = match members.remove("method") {
            Some(Value::String(method)) => Some(method),
            None if id.is_some() && (members.contains_key("result") || members.contains_key("error")) => None,
            _ => return refuse(INVALID_REQUEST, "method: it must be the name of a method, such as \"tools/call\"."),
        };
        if method.is_some() && body.len() > KEPT_BYTES_MAX && body.len() - arguments_bytes(body) > KEPT_BYTES_MAX {
            let why = "params: beside the arguments of a call they must be shorter than 128 KiB: send less.";
            return refuse(INVALID_PARAMS, why);
        }
        match members.get("params") {
            None | Some(Value::Null | Value::Object(_)) => Ok(Self { method, id }),
            Some(_) => refuse(INVALID_PARAMS, "params: they must be an object."),
        }
    }
}

/// The outside of a body, which is JSON within its bounds.
pub(super) fn outline(body: &[u8]) -> Result<Value, ApiError> {
    json::outline(body, VALUES_MAX).map_err(|error| {
        let rpc = if error.classify() == Category::Data { INVALID_REQUEST } else { PARSE_ERROR };
        refusal(rpc, None, json::complaint(&error))
    })
}

/// The length of the arguments of a call as they were sent; 0 where there are none.
fn arguments_bytes(body: &[u8]) -> usize {
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(borrow)]
        params: Params<'a>,
    }
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(borrow)]
        arguments: &'a RawValue,
    }
    serde_json::from_slice::<Message<'_>>(body).map_or(0, |message| message.params.arguments.get().len())
}

/// An id is echoed exactly, so only forms that survive are accepted.
fn is_echoed(id: &Value) -> bool {
    match id {
        Value::String(text) => text.chars().count() <= ID_CHARS_MAX,
        Value::Number(number) => number.is_i64(),
        _ => false,
    }
}

/// An error with the request's own id, so that the client finds what was refused.
pub(super) fn refusal(rpc: i64, id: Option<&Value>, message: impl Into<String>) -> ApiError {
    of(Failure::new(Code::InvalidRequest, message), rpc, id)
}

/// A failure that is not about the form of the message.
pub(super) fn failed(failure: Failure) -> ApiError {
    of(failure, INVALID_REQUEST, None)
}

fn of(failure: Failure, code: i64, id: Option<&Value>) -> ApiError {
    ApiError { rpc: Some(RpcError { code, id: id.cloned().map(Box::new) }), ..failure.into() }
}

/// Gives rmcp's plain sentences the form that JSON-RPC clients can read; everything else passes as it is.
///
/// rmcp answers 415 to a body that is no message; the content type was checked before, so the form of the body is
/// wrong.
pub(super) async fn as_json_rpc(response: Response, id: Option<Value>) -> Response {
    let status = response.status();
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let readable = kind.starts_with("application/json") || kind.starts_with("text/event-stream");
    if status.is_success() || readable {
        return response;
    }
    let (head, body) = response.into_parts();
    let id = id.as_ref();
    let error = if status.is_server_error() {
        // The sentence could hold an internal cause, so it is not passed on.
        let failure = Failure::new(Code::Internal, "The server failed to answer.");
        ApiError { status: Some(status), ..of(failure, INTERNAL_ERROR, id) }
    } else if status == StatusCode::UNSUPPORTED_MEDIA_TYPE {
        let why = "The body is no JSON-RPC message that this server knows: see the MCP specification.";
        refusal(INVALID_REQUEST, id, why)
    } else {
        let sentence = match Limited::new(body, SENTENCE_BYTES_MAX).collect().await {
            Ok(body) => String::from_utf8_lossy(&body.to_bytes()).into_owned(),
            Err(_) => "The request is refused.".to_owned(),
        };
        ApiError { status: Some(status), ..refusal(INVALID_REQUEST, id, sentence) }
    };
    let mut answer = error.into_response();
    keep_headers(&head.headers, &mut answer);
    answer
}

#[cfg(test)]
mod tests {
    use bolero::{check, produce};
    use serde_json::json;

    use super::*;
    use crate::domain::fuzz_support::{altered, cases};

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
        const GOOD: &str =
            r#"{"jsonrpc":"2.0","id":-12,"method":"tools/call","params":{"name":"a","id":[1,"\u0061"]}}"#;
        let alterations = produce::<Vec<_>>().with().len(0..4_usize);
        check!()
            .with_iterations(cases())
            .with_generator(alterations)
            .for_each(|alterations| is_read_or_refused(&altered(GOOD, alterations)));
    }
}
