//! The allowed requests: those that the adapter makes. A request is parsed into a [`Call`], and the engine's request is
//! built from that alone, so that this parser and the engine's cannot disagree. Pure.

use std::fmt::Display;

use http::{Method, StatusCode, Uri};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::{Value, json};

use super::super::{super::labels, call, convert, images};
use crate::{
    domain::{SandboxId, text::one_line},
    ports::engine::EngineError,
};

/// The longest reason of a refusal.
const WHY_CHARS_MAX: usize = 1000;
/// The oldest version of the engine's interface that the adapter speaks. In older ones the engine leaves out fields of
/// a container without an error, such as `NonRecursive` of a mount before 1.40.
const VERSION_MIN: (u16, u16) = (1, 41);

/// A call of the engine that the adapter makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Call {
    /// One with this path and query: `_ping`, `version`, `info`, the changes of images, or the runner images.
    Plain(String),
    /// The list of our containers with this label: that of all of them, or of one.
    List(String),
    Create(SandboxId),
    On(SandboxId, Act),
}

/// A call about one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Attach,
    Start,
    Inspect,
    Wait,
    Kill,
    /// Lowering its CPU.
    LimitCpu,
    Remove,
}

/// A call in a version of the engine's interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Allowed {
    pub method: Method,
    /// Major and minor, if present.
    version: Option<(u16, u16)>,
    pub call: Call,
    /// The engine's own id of the container, once it is known: unlike a name, it never names another one.
    pub container: Option<String>,
}

/// Why a request is not passed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Denied {
    pub status: StatusCode,
    pub why: String,
}

impl Denied {
    /// The reason may repeat what was requested, and becomes one line of the log.
    pub(super) fn new(why: impl Into<String>) -> Self {
        let why = one_line(&why.into()).chars().take(WHY_CHARS_MAX).collect();
        Self { status: StatusCode::FORBIDDEN, why }
    }

    /// The adapter reports it as unavailable.
    pub(super) fn unavailable(error: impl Display) -> Self {
        Self { status: StatusCode::BAD_GATEWAY, why: format!("the engine does not answer: {error}") }
    }
}

impl From<EngineError> for Denied {
    /// The engine does not have it, or failed.
    fn from(error: EngineError) -> Self {
        if call::status(&error) == Some(404) {
            return Self { status: StatusCode::NOT_FOUND, why: "the engine has no such image or container".to_owned() };
        }
        Self::unavailable(error)
    }
}

/// Parses method and URI.
pub(super) fn parse(method: &Method, uri: &Uri) -> Result<Allowed, Denied> {
    let mut segments: Vec<&str> = uri.path().split('/').skip(1).collect();
    let version = segments.first().and_then(|first| version(first));
    if version.is_some() {
        segments.remove(0);
    }
    let denied = || Denied::new(format!("not among the calls of this server's adapter: {method} {}", uri.path()));
    let id = |text: &str| text.parse::<SandboxId>().map_err(|_| denied());
    let call = match (method.as_str(), segments.as_slice()) {
        ("GET" | "HEAD", ["_ping"]) => Call::Plain("_ping".to_owned()),
        ("GET", [name @ ("version" | "info")]) => Call::Plain((*name).to_owned()),
        ("GET", ["events"]) => Call::Plain(filtered("events?", &json!({"type": ["image"], "event": images::ACTIONS}))),
        ("GET", ["images", "json"]) => Call::Plain(filtered("images/json?", &json!({"label": [labels::RUNNERS]}))),
        ("GET", ["containers", "json"]) => Call::List(selected(uri).ok_or_else(denied)?),
        ("POST", ["containers", "create"]) => Call::Create(id(&argument(uri, "name").ok_or_else(denied)?)?),
        ("POST", ["containers", name, "attach"]) => Call::On(id(name)?, Act::Attach),
        ("POST", ["containers", name, "start"]) => Call::On(id(name)?, Act::Start),
        ("GET", ["containers", name, "json"]) => Call::On(id(name)?, Act::Inspect),
        ("POST", ["containers", name, "wait"]) => Call::On(id(name)?, Act::Wait),
        ("POST", ["containers", name, "kill"]) => Call::On(id(name)?, Act::Kill),
        ("POST", ["containers", name, "update"]) => Call::On(id(name)?, Act::LimitCpu),
        ("DELETE", ["containers", name]) => Call::On(id(name)?, Act::Remove),
        _ => return Err(denied()),
    };
    let method = if *method == Method::HEAD { Method::GET } else { method.clone() };
    Ok(Allowed { method, version, call, container: None })
}

/// `v1.41` and later.
fn version(segment: &str) -> Option<(u16, u16)> {
    let (major, minor) = segment.strip_prefix('v')?.split_once('.')?;
    let version: (u16, u16) = (major.parse().ok()?, minor.parse().ok()?);
    (version >= VERSION_MIN).then_some(version)
}

/// A decoded query argument; `None` when it occurs twice.
fn argument(uri: &Uri, name: &str) -> Option<String> {
    let mut found = uri.query()?.split('&').filter_map(|part| part.strip_prefix(name)?.strip_prefix('='));
    let (value, None) = (found.next()?, found.next()) else { return None };
    Some(percent_decode_str(value).decode_utf8().ok()?.into_owned())
}

/// The label of the containers to list: all of ours, or one.
fn selected(uri: &Uri) -> Option<String> {
    let filters: Value = serde_json::from_str(&argument(uri, "filters")?).ok()?;
    let label = filters.get("label")?.as_array()?.first()?.as_str()?;
    if label == labels::SELECTOR {
        return Some(label.to_owned());
    }
    let id = label.split_once('=')?.1.parse().ok()?;
    Some(convert::id_filter(id)).filter(|own| own == label)
}

/// A path and the beginning of its query, with filters.
fn filtered(path: &str, filters: &Value) -> String {
    format!("{path}filters={}", utf8_percent_encode(&filters.to_string(), NON_ALPHANUMERIC))
}

impl Allowed {
    /// The path and query for the engine.
    pub(super) fn target(&self) -> String {
        let version = self.version.map_or_else(String::new, |(major, minor)| format!("/v{major}.{minor}"));
        let rest = match &self.call {
            Call::Plain(rest) => rest.clone(),
            Call::List(label) => filtered("containers/json?all=true&", &json!({"label": [label]})),
            Call::Create(id) => format!("containers/create?name={id}"),
            Call::On(id, act) => {
                let rest = match act {
                    Act::Attach => "/attach?stream=true&stdin=true&stdout=true&stderr=true",
                    Act::Start => "/start",
                    Act::Inspect => "/json",
                    Act::Wait => "/wait?condition=not-running",
                    Act::Kill => "/kill?signal=KILL",
                    Act::LimitCpu => "/update",
                    Act::Remove => "?force=true&v=true",
                };
                format!("containers/{}{rest}", self.container.clone().unwrap_or_else(|| id.to_string()))
            }
        };
        format!("{version}/{rest}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "sandbox-0190c6a000007000800000000000000a";

    fn target(method: &str, uri: &str) -> Option<String> {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        parse(&method, &uri.parse().expect("a URI")).ok().map(|allowed| allowed.target())
    }

    #[test]
    fn target_is_rebuilt_from_the_call() {
        assert_eq!(target("GET", "/v1.41/version").as_deref(), Some("/v1.41/version"));
        assert_eq!(target("HEAD", "/_ping").as_deref(), Some("/_ping"));
        assert_eq!(target("GET", "/v2.0/info").as_deref(), Some("/v2.0/info"));
        let attach = format!("/v1.41/containers/{ID}/attach?stream=true&stdin=true&stdout=true&stderr=true");
        assert_eq!(target("POST", &format!("/v1.41/containers/{ID}/attach?logs=true")), Some(attach));
        let remove = format!("/containers/{ID}?force=true&v=true");
        assert_eq!(target("DELETE", &format!("/containers/{ID}?link=true")), Some(remove));
        let update = format!("/v1.41/containers/{ID}/update");
        assert_eq!(target("POST", &format!("{update}?x=y")), Some(update));
        let create = format!("/v1.41/containers/create?name={ID}");
        assert_eq!(target("POST", &format!("{create}&platform=x")), Some(create));
        let ours = "/v1.41/containers/json?all=true&filters=%7B%22label%22%3A%5B%22sandbox%2Emanaged%3Dtrue%22%5D%7D";
        assert_eq!(target("GET", ours).as_deref(), Some(ours));
    }

    #[test]
    fn reason_of_a_refusal_is_one_line_of_bounded_length() {
        let why = Denied::new(format!("/a\n2026-01-01 INFO all is well\x1b[31m{}", "x".repeat(1 << 20))).why;
        assert!(why.starts_with("/a 2026") && !why.chars().any(char::is_control), "{why}");
        assert_eq!(why.chars().count(), WHY_CHARS_MAX);
    }

    #[test]
    fn parse_refuses_every_other_request() {
        let refused = [
            ("POST", format!("/v1.40/containers/create?name={ID}")),
            ("POST", format!("/v1.39/containers/{ID}/start")),
            ("GET", "/v0.42/version".to_owned()),
            ("GET", "/v1.41/containers/json".to_owned()),
            ("GET", "/v1.41/containers/json?filters=%7B%22label%22%3A%5B%22sandbox.id%3Dx%22%5D%7D".to_owned()),
            ("POST", "/v1.41/containers/create".to_owned()),
            ("POST", "/v1.41/containers/create?name=web".to_owned()),
            ("POST", format!("/v1.41/containers/create?name={ID}&name={ID}")),
            ("POST", format!("/v1.41/containers/{ID}/exec")),
            ("POST", format!("/v1.41/containers/{ID}/rename?name=x")),
            ("PUT", format!("/v1.41/containers/{ID}/archive?path=/")),
            ("GET", format!("/v1.41/containers/{ID}/archive?path=/")),
            ("POST", format!("/v1.41/containers/{ID}/../web/start")),
            ("POST", format!("/v1.41/containers/{ID}%2f..%2fweb/start")),
            ("POST", format!("/v1.41//containers/{ID}/start")),
            ("GET", "/v1.41/containers/web/json".to_owned()),
            ("DELETE", "/v1.41/containers/web".to_owned()),
            ("POST", "/v1.41/images/create?fromImage=x".to_owned()),
            ("POST", "/v1.41/build".to_owned()),
            ("GET", "/v1.41/secrets".to_owned()),
            ("POST", "/v1.41/volumes/create".to_owned()),
            ("POST", "/v1.41/exec/x/start".to_owned()),
            ("POST", "/v1.41/session".to_owned()),
            ("POST", "/v1.41/plugins/pull".to_owned()),
            ("CONNECT", "example.com:80".to_owned()),
        ];
        for (method, uri) in refused {
            assert_eq!(target(method, &uri), None, "{method} {uri}");
        }
    }
}
