//! The subcommand of the container that holds the engine's socket. Reads none of the server's secrets.

use std::{path::Path, process::ExitCode};

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use crate::{
    adapters::engine::proxy::{Proxy, ProxyOptions},
    config::telemetry,
};

/// Listens until a signal.
pub fn run(listen: &Path, options: ProxyOptions) -> anyhow::Result<ExitCode> {
    telemetry::init("info", false)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no runtime")?;
    runtime.block_on(async {
        let proxy = Proxy::new(options)?;
        let listener = Proxy::listen(listen)?;
        let shutdown = CancellationToken::new();
        tokio::spawn(super::cancel_on_signal(shutdown.clone()));
        tracing::info!(socket = %listen.display(), "sandboxes can be started here, and nothing else");
        proxy.serve(listener, shutdown).await;
        Ok(ExitCode::SUCCESS)
    })
}
