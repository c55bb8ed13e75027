//! Requests whose parameters do not fit their method, and unknown methods.

use rmcp::{ErrorData, model::ErrorCode};

use super::shown;

/// Why such a request is refused.
pub(super) fn refusal(method: &str, is_modern: bool) -> ErrorData {
    let why = match method {
        "tools/call" => {
            "params: a call is {\"name\": …, \"arguments\": {…}} with a string as name and an object as arguments"
        }
        "initialize" => "params: initialize needs protocolVersion, capabilities and clientInfo {name, version}",
        "tools/list"
        | "server/discover"
        | "ping"
        | "resources/list"
        | "resources/templates/list"
        | "resources/read"
        | "skills/list"
        | "skills/get"
        | "subscriptions/listen" => "params: they must be an object of this method's form",
        // Methods of the revisions before 2026-07-28.
        "resources/subscribe" | "resources/unsubscribe" if !is_modern => {
            "params: they must be {\"uri\": …} with a string"
        }
        _ => {
            let why = format!("method: there is no `{}` here", shown(method));
            return ErrorData::new(ErrorCode::METHOD_NOT_FOUND, why, None);
        }
    };
    ErrorData::invalid_params(why, None)
}
