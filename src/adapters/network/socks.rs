//! SOCKS 5 (RFC 1928): connections by name or address, without authentication.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use tokio::{
    io::{self, AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use super::{HEAD_MAX, Sandbox, channel::Client, tunnel};
use crate::domain::network::{Host, Refusal, Target};

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const NO_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

const GRANTED: u8 = 0;
const FAILED: u8 = 1;
const FORBIDDEN: u8 = 2;
const UNREACHABLE: u8 = 4;
const NO_COMMAND: u8 = 7;
const NO_ADDRESS: u8 = 8;

/// Serves one client; with `is_full` there is no room for its connection.
pub(super) async fn serve(mut client: Client, sandbox: &Arc<Sandbox>, is_full: bool) {
    // A client that breaks off, or takes too long, has made no connection.
    let Ok(Ok(asked)) = timeout(HEAD_MAX, ask(&mut client)).await else { return };
    let target = match asked {
        Ok(target) => target,
        Err((reply, text)) => {
            sandbox.refused(text, Refusal::Malformed);
            let _ = answer(&mut client, reply).await;
            return;
        }
    };
    if is_full {
        sandbox.refused(target.to_string(), Refusal::TooMany);
        let _ = answer(&mut client, FAILED).await;
        return;
    }
    let ended = client.get_ref().ended();
    match tunnel::connect(&target, sandbox, &ended).await {
        Ok(connected) => {
            if answer(&mut client, GRANTED).await.is_ok() {
                tunnel::carry(client, connected, &target, sandbox).await;
            }
        }
        Err(refusal) => {
            let reply = if refusal.is_forbidden() { FORBIDDEN } else { UNREACHABLE };
            let _ = answer(&mut client, reply).await;
        }
    }
}

/// What the client asks for, or the reply to it and what it wrote.
async fn ask(client: &mut Client) -> io::Result<Result<Target, (u8, String)>> {
    let _version = client.read_u8().await?;
    let mut methods = vec![0; client.read_u8().await?.into()];
    client.read_exact(&mut methods).await?;
    if !methods.contains(&NO_AUTHENTICATION) {
        client.write_all(&[VERSION, NO_METHOD]).await?;
        client.flush().await?;
        return Err(io::ErrorKind::Unsupported.into());
    }
    client.write_all(&[VERSION, NO_AUTHENTICATION]).await?;
    client.flush().await?;
    let [version, command, _, kind] = client.read_u32().await?.to_be_bytes();
    let host = match kind {
        IPV4 => Some(Host::Address(IpAddr::V4(Ipv4Addr::from(client.read_u32().await?)))),
        IPV6 => Some(Host::Address(IpAddr::V6(Ipv6Addr::from(client.read_u128().await?)))),
        NAME => {
            let mut name = vec![0; client.read_u8().await?.into()];
            client.read_exact(&mut name).await?;
            let name = String::from_utf8_lossy(&name).into_owned();
            match Host::parse(&name) {
                None => return Ok(Err((NO_ADDRESS, name))),
                host => host,
            }
        }
        _ => None,
    };
    let Some(host) = host else { return Ok(Err((NO_ADDRESS, String::new()))) };
    let target = Target { host, port: client.read_u16().await? };
    let is_connect = version == VERSION && command == CONNECT;
    Ok(if is_connect { Ok(target) } else { Err((NO_COMMAND, target.to_string())) })
}

async fn answer(client: &mut Client, reply: u8) -> io::Result<()> {
    // The bound address is of no use to a client.
    client.write_all(&[VERSION, reply, 0, IPV4, 0, 0, 0, 0, 0, 0]).await?;
    client.flush().await
}
