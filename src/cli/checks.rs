//! Commands that check something and say by their exit status what came of it: this machine, the audit log, a running
//! server. The checks of the machine are in [`crate::app::doctor`].

use std::{
    io::{Read as _, Write as _},
    net::{TcpStream, ToSocketAddrs as _},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use anyhow::Context as _;
use clap::Subcommand;

use crate::{
    adapters::audit::verify,
    app::doctor::{self, Findings},
    config::{self, BindAddr, Config, Sources},
};

const WAIT: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: u64 = 4096;

#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Check that no line was changed, removed, added or moved; the exit status says so.
    Verify {
        /// The files of the log, oldest first; the default is `SANDBOX_AUDIT__FILE`.
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

pub async fn doctor(config: &Config, json: bool) -> anyhow::Result<ExitCode> {
    conclude(&doctor::check(config).await, json)
}

/// Prints findings.
pub fn conclude(findings: &Findings, json: bool) -> anyhow::Result<ExitCode> {
    super::print(&if json { findings.json()? } else { findings.text() })?;
    Ok(if findings.failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

pub fn audit(command: AuditCommand, sources: &Sources) -> anyhow::Result<ExitCode> {
    let AuditCommand::Verify { mut files } = command;
    if files.is_empty() {
        let file = config::load(sources)?.audit.file;
        anyhow::ensure!(!file.is_empty(), "name the file to verify, or set SANDBOX_AUDIT__FILE");
        files.push(file.into());
    }
    super::print(&format!("{}\n", verify(&files)?))
}

/// Asks a running server, for container health checks; the image holds no other program. Exit status 0 when `/readyz`
/// answers 200.
pub fn health(addr: Option<String>, sources: &Sources) -> anyhow::Result<ExitCode> {
    let addr = if let Some(addr) = addr {
        addr
    } else {
        let BindAddr { host, port } = config::load(sources)?.http_addr;
        format!("{}:{port}", host.as_deref().unwrap_or("127.0.0.1"))
    };
    let answer = ask(&addr).with_context(|| format!("no server answers at {addr}"))?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    writeln!(std::io::stdout(), "{body}")?;
    Ok(if answer.starts_with("HTTP/1.1 200 ") { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn ask(addr: &str) -> anyhow::Result<String> {
    let addr = addr.to_socket_addrs()?.next().context("the name has no address")?;
    let mut stream = TcpStream::connect_timeout(&addr, WAIT)?;
    stream.set_read_timeout(Some(WAIT))?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
