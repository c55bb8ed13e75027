//! The log: lines on standard error, as text or JSON.

use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

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
    Ok(())
}
