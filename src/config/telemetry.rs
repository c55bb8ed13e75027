//! Settings of metrics, the audit log, traces and the log. Starts the log: lines on standard error, as text or JSON.

use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use super::{
    section::section,
    value::{BindAddr, Secret},
};

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

/// Starts the log for the whole process. A second call does nothing.
///
/// # Errors
/// When the filter cannot be read; the sentence names the setting.
pub fn init(level: &str, json: bool) -> Result<(), super::ConfigError> {
    // At debug the MCP SDK logs every message with its arguments, which are programs of users. A filter that names it
    // wins.
    let level = format!("rmcp=warn,{level}");
    let filter = EnvFilter::try_new(&level).map_err(|_| {
        super::ConfigError("SANDBOX_LOG__LEVEL must be error, warn, info, debug, trace or a tracing filter.".to_owned())
    })?;
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
}
