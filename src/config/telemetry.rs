//! Settings of what is recorded: metrics, the audit log, the history, traces and the log. Starts the log: lines on
//! standard error, as text or JSON. Reads the address of a collector of traces and its headers, as its documentation
//! writes them; no error repeats a value, because an address can hold a password and headers do.

use http::{HeaderMap, HeaderName, HeaderValue, Uri, header, uri::PathAndQuery};
use secrecy::ExposeSecret as _;
use tracing_subscriber::{EnvFilter, filter::LevelFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use super::{BindAddr, ConfigError, Secret, section};
use crate::domain::text::items;

/// The path below the address of the collector (OTLP 1.x, "OTLP/HTTP Request").
const PATH: &str = "/v1/traces";
const PORT: u16 = 4318;
/// Headers that the sender writes itself, or that would change how the body is read.
const OURS: [HeaderName; 6] = [
    header::HOST,
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::CONTENT_ENCODING,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
];

section! {
    /// Metrics, as `/metrics`.
    pub struct Metrics("metrics") {
        /// A separate address for /metrics, without a token: `127.0.0.1:9090`, or one on a network that only scrapers
        /// reach. Empty: only /metrics of the server itself, which requires the bearer token.
        http_addr: String = String::new(),
    }
}

section! {
    /// The audit log: a line for each run.
    pub struct Audit("audit") {
        /// File to which a line of JSON is appended for each run: the owner, the hash of the program, the image and how
        /// it ended. Empty: none. The file is created again after it was moved away.
        file: String = String::new(),
    }
}

section! {
    /// The history of runs and cells.
    pub struct History("history") {
        /// Whether the history keeps programs, not only their digests. true or false.
        source: bool = false,
        /// How much of a program is kept, in bytes.
        source_bytes_max: u64 = 16 << 10 => 1..=1 << 20,
        /// How long an entry of the history is kept, in seconds. 0: no limit. Usage is always kept.
        kept_s: u64 = 90 * 86_400 => 0..=100 * 365 * 86_400,
        /// Entries that are kept; the oldest are removed first.
        kept_max: u64 = 1_000_000 => 1..=1 << 40,
        /// Size of the entries that are kept, in bytes: 1 KiB for each, and its program, message and names of files;
        /// the oldest are removed first.
        kept_bytes: u64 = 1 << 30 => 1 << 20..=1 << 50,
    }
}

section! {
    /// Traces of requests and runs, for an OpenTelemetry collector.
    pub struct Traces("traces") {
        /// Collector that traces are sent to as OTLP over HTTP (protobuf), such as `http://127.0.0.1:4318`; they go
        /// to its `/v1/traces`. There is no https: the collector must be on this machine or on a trusted network.
        /// Empty: none.
        otlp_endpoint: String = String::new(),
        /// Headers that the collector requires: `name=value,name=value`, values percent-encoded. A secret.
        otlp_headers: Secret = Secret::default(),
    }
}

section! {
    /// The log, on standard error.
    pub struct Log("log") {
        /// error, warn, info, debug or trace, or a tracing filter such as `info,mcp_sandbox_server=debug`.
        level: String = "info".to_owned(),
        /// text or json.
        format: String = "text".to_owned(),
    }
}

impl Metrics {
    /// The separate address, if there is one.
    pub fn addr(&self) -> Option<BindAddr> {
        self.http_addr.parse().ok()
    }
}

/// A collector that traces are sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collector {
    /// A name or an address, without brackets.
    pub host: String,
    pub port: u16,
    /// The value of the header `Host`.
    pub authority: HeaderValue,
    pub path: PathAndQuery,
    /// Their values are not shown by `Debug`.
    pub headers: HeaderMap,
}

impl Traces {
    /// The collector, if one is set.
    ///
    /// # Errors
    /// When the address or the headers are malformed.
    pub fn collector(&self) -> Result<Option<Collector>, ConfigError> {
        let headers = headers(self.otlp_headers.expose().expose_secret())?;
        if self.otlp_endpoint.is_empty() {
            return Ok(None);
        }
        address(self.otlp_endpoint.trim(), headers).map(Some)
    }
}

fn address(text: &str, headers: HeaderMap) -> Result<Collector, ConfigError> {
    let error = |why: &str| ConfigError(format!("SANDBOX_TRACES__OTLP_ENDPOINT {why}"));
    let wrong = || error("must be an address such as http://127.0.0.1:4318, without user, query or fragment.");
    let uri: Uri = text.parse().map_err(|_| wrong())?;
    if uri.scheme_str() == Some("https") {
        return Err(error(
            "begins with https, which this server does not support: run a collector on this machine that forwards \
             traces, and set its http address.",
        ));
    }
    let (Some(authority), Some("http")) = (uri.authority(), uri.scheme_str()) else { return Err(wrong()) };
    let host = authority.host().trim_matches(['[', ']']);
    let no_port = matches!(authority.as_str().strip_prefix(authority.host()), Some("" | ":"));
    let port = authority.port_u16().or(no_port.then_some(PORT)).filter(|port| *port > 0).ok_or_else(wrong)?;
    if host.is_empty() || uri.query().is_some() || text.contains(['#', '@']) {
        return Err(wrong());
    }
    let base = uri.path().trim_end_matches('/');
    let path = if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") };
    Ok(Collector {
        host: host.to_owned(),
        port,
        authority: HeaderValue::from_str(authority.as_str()).map_err(|_| wrong())?,
        path: path.parse().map_err(|_| wrong())?,
        headers,
    })
}

fn headers(text: &str) -> Result<HeaderMap, ConfigError> {
    let wrong = || {
        ConfigError(
            "SANDBOX_TRACES__OTLP_HEADERS must be `name=value,name=value` with names of HTTP headers other than those \
             of the body and the connection; in values `,` is written %2C."
                .to_owned(),
        )
    };
    let mut headers = HeaderMap::new();
    for pair in items(text) {
        let (name, value) = pair.split_once('=').ok_or_else(wrong)?;
        let name = HeaderName::try_from(name.trim()).map_err(|_| wrong())?;
        let value: Vec<u8> = percent_encoding::percent_decode_str(value.trim()).collect();
        let mut value = HeaderValue::try_from(value).map_err(|_| wrong())?;
        value.set_sensitive(true);
        if OURS.contains(&name) || headers.insert(name, value).is_some() {
            return Err(wrong());
        }
    }
    Ok(headers)
}

/// What is logged.
///
/// # Errors
/// When the filter cannot be read; the sentence names the setting.
pub(super) fn filter(level: &str) -> Result<EnvFilter, ConfigError> {
    let wrong =
        || ConfigError("SANDBOX_LOG__LEVEL must be error, warn, info, debug, trace or a tracing filter.".to_owned());
    // In a filter this would be a module, and no line of any other would be logged, not even an error.
    if level.bytes().all(|byte| byte.is_ascii_alphabetic()) && level.parse::<LevelFilter>().is_err() {
        return Err(wrong());
    }
    // At debug the MCP SDK logs every message with its arguments, which are programs of users. A filter that names it
    // wins.
    EnvFilter::try_new(format!("rmcp=warn,{level}")).map_err(|_| wrong())
}

/// Starts the log for the whole process. A second call does nothing.
///
/// # Errors
/// When the filter cannot be read; the sentence names the setting.
pub fn init(level: &str, json: bool) -> Result<(), ConfigError> {
    let filter = filter(level)?;
    let registry = tracing_subscriber::registry().with(filter);
    let layer = fmt::layer().with_writer(std::io::stderr).with_target(false);
    let started =
        if json { registry.with(layer.json()).try_init() } else { registry.with(layer.with_ansi(false)).try_init() };
    drop(started);
    if json {
        log_panics();
    }
    Ok(())
}

/// Makes a panic a line of the log, in the span in which it happens. Rust writes it as plain text.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "a fault of the server")));
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_panic_is_a_line_of_the_log() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let log = fmt().json().with_writer(Mutex::new(file.reopen().expect("the file"))).finish();
        let before = std::panic::take_hook();
        log_panics();
        let parsed = tracing::subscriber::with_default(log, || {
            std::panic::catch_unwind(|| "x".parse::<u8>().expect("on purpose"))
        });
        std::panic::set_hook(before);
        assert!(parsed.is_err());
        let text = std::fs::read_to_string(file.path()).expect("the log");
        let line: serde_json::Value = serde_json::from_str(text.trim()).expect(&text);
        assert_eq!(line["level"], "ERROR");
        let panic = line["fields"]["panic"].as_str().expect("a text");
        assert!(panic.contains("telemetry.rs") && panic.contains("on purpose"), "{panic}");
    }

    #[test]
    fn a_word_that_is_no_level_is_no_filter() {
        for good in ["off", "WARN", "trace", "5", "info,mcp_sandbox_server=debug", "mcp_sandbox_server"] {
            assert!(filter(good).is_ok(), "{good}");
        }
        for bad in ["warning", "verbose", "info,mcp_sandbox_server=loud"] {
            assert!(filter(bad).expect_err(bad).0.starts_with("SANDBOX_LOG__LEVEL "), "{bad}");
        }
    }

    fn collector(address: &str, pairs: &str) -> Result<Collector, ConfigError> {
        super::address(address, headers(pairs)?)
    }

    #[test]
    fn addresses_are_parsed() {
        for (text, host, port, path) in [
            ("http://127.0.0.1:4318", "127.0.0.1", 4318, "/v1/traces"),
            ("http://collector", "collector", 4318, "/v1/traces"),
            ("http://[::1]:80/", "::1", 80, "/v1/traces"),
            ("http://[::1]", "::1", 4318, "/v1/traces"),
            ("http://c:1/otlp/", "c", 1, "/otlp/v1/traces"),
            ("http://c:1/v1/traces", "c", 1, "/v1/traces"),
        ] {
            let found = collector(text, "").unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((found.host.as_str(), found.port, found.path.as_str()), (host, port, path), "{text}");
        }
        for bad in [
            "https://127.0.0.1:4318",
            "127.0.0.1:4318",
            "http://",
            "http:///v1/traces",
            "http://c:0",
            "http://c:99999",
            "http://c:x",
            "http://user:pass-of-mine@c:1",
            "http://c:1?key=1",
            "http://c:1#x",
            "unix:///run/otlp.sock",
            "nonsense of all kinds",
        ] {
            let error = collector(bad, "").expect_err(bad).0;
            assert!(error.starts_with("SANDBOX_TRACES__OTLP_ENDPOINT ") && !error.contains("pass-of-mine"), "{error}");
        }
        assert!(collector("https://c", "").expect_err("https").0.contains("does not support"));
    }

    #[test]
    fn headers_are_parsed_and_never_shown() {
        let found = collector("http://c", "Authorization=Basic%20dXNlcg==, x-team = a%2Cb,").expect("headers");
        assert_eq!(found.headers["authorization"], "Basic dXNlcg==");
        assert_eq!(found.headers["x-team"], "a,b");
        assert!(!format!("{found:?}").contains("dXNlcg"), "{found:?}");
        for bad in ["a-secret", "=a-secret", "x y=a-secret", "x=a-secret%0a", "host=a-secret", "x=a-secret,X=1"] {
            let error = collector("http://c", bad).expect_err(bad).0;
            assert!(error.starts_with("SANDBOX_TRACES__OTLP_HEADERS ") && !error.contains("a-secret"), "{error}");
        }
    }
}
