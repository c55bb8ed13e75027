//! Asks a running server whether it is ready, for container health checks; the image holds no other program.

use std::{
    io::{Read as _, Write as _},
    net::{TcpStream, ToSocketAddrs as _},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context as _;

use crate::config::{self, BindAddr, Sources};

const WAIT: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: u64 = 4096;

/// Exit status 0 when `/readyz` answers 200.
pub fn check(addr: Option<String>, sources: &Sources) -> anyhow::Result<ExitCode> {
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
