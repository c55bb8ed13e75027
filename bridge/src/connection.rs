//! The connection file of a kernel: made or read, and the four sockets that it names. `ipc` sockets are files, whose
//! coming is awaited before they are connected to, because the crate's own retries begin at 50 ms.

use std::{
    fs,
    io::{self, Write},
    net::TcpListener,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use zeromq::{DealerSocket, Socket, SocketOptions, SubSocket, ZmqError, util::PeerIdentity};

use crate::{kernelspec::Transport, signer::hex, socket::KernelSocket};

/// Interval at which sockets are looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A connection file.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Connection {
    transport: Transport,
    ip: String,
    shell_port: u16,
    iopub_port: u16,
    stdin_port: u16,
    control_port: u16,
    hb_port: u16,
    pub key: String,
    signature_scheme: String,
    #[serde(default)]
    kernel_name: String,
}

/// The sockets to a kernel.
pub struct Sockets {
    pub shell: KernelSocket,
    pub control: KernelSocket,
    pub stdin: KernelSocket,
    pub iopub: SubSocket,
}

impl Connection {
    /// Makes a file for a new kernel in `folder`, with a key that only this user can read.
    pub fn make(kernel_name: &str, transport: Transport, folder: &Path) -> io::Result<(Self, PathBuf)> {
        let id = std::process::id();
        let (ip, ports) = match transport {
            Transport::Ipc => (folder.join(format!(".kernel-{id}")).to_string_lossy().into_owned(), [1, 2, 3, 4, 5]),
            Transport::Tcp => ("127.0.0.1".to_owned(), free_ports()?),
        };
        let [shell_port, iopub_port, stdin_port, control_port, hb_port] = ports;
        let connection = Self {
            transport,
            ip,
            shell_port,
            iopub_port,
            stdin_port,
            control_port,
            hb_port,
            key: random_word()?,
            signature_scheme: "hmac-sha256".to_owned(),
            kernel_name: kernel_name.to_owned(),
        };
        let path = folder.join(format!(".kernel-{id}.json"));
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(serde_json::to_string(&connection)?.as_bytes())?;
        Ok((connection, path))
    }

    /// Reads the file of a kernel that starts by itself.
    pub fn read(path: &Path) -> io::Result<Self> {
        let connection: Self = serde_json::from_slice(&fs::read(path)?)?;
        let is_known = connection.key.is_empty() || connection.signature_scheme == "hmac-sha256";
        if is_known { Ok(connection) } else { Err(io::Error::other("unknown signature scheme")) }
    }

    fn ports(&self) -> [u16; 5] {
        [self.shell_port, self.iopub_port, self.stdin_port, self.control_port, self.hb_port]
    }

    /// The address of a port, if something listens there. Jupyter writes `ip-port`, some kernels `ip:port`.
    fn found(&self, port: u16) -> Option<String> {
        match self.transport {
            Transport::Ipc => {
                let paths = [format!("{}-{port}", self.ip), format!("{}:{port}", self.ip)];
                paths.into_iter().find(|path| Path::new(path).exists()).map(|path| format!("ipc://{path}"))
            }
            Transport::Tcp => {
                let address = format!("{}:{port}", self.ip);
                std::net::TcpStream::connect(&address).ok().map(|_| format!("tcp://{address}"))
            }
        }
    }

    /// Waits for the kernel's sockets and connects to them. Ends only when it succeeds or something else
    /// than `ZeroMQ` listens there.
    ///
    /// # Errors
    /// What the kernel answered wrongly.
    pub async fn connect(&self) -> Result<Sockets, ZmqError> {
        let mut addresses = Vec::new();
        for port in self.ports() {
            let address = loop {
                match self.found(port) {
                    Some(address) => break address,
                    None => tokio::time::sleep(LOOK_AGAIN).await,
                }
            };
            addresses.push(address);
        }
        // A kernel sends what it asks of `input()` to the identity that sent it the cell.
        let identity = PeerIdentity::new();
        let dealer = || {
            let mut options = SocketOptions::default();
            options.peer_identity(identity.clone());
            DealerSocket::with_options(options)
        };
        let (mut shell, mut control, mut stdin, mut iopub) = (dealer(), dealer(), dealer(), SubSocket::new());
        shell.connect(&addresses[0]).await?;
        iopub.connect(&addresses[1]).await?;
        iopub.subscribe("").await?;
        stdin.connect(&addresses[2]).await?;
        control.connect(&addresses[3]).await?;
        let [shell, control, stdin] = [shell, control, stdin].map(KernelSocket::new);
        Ok(Sockets { shell, control, stdin, iopub })
    }
}

/// Ports that nothing listens on. All are open at once, so that they differ.
fn free_ports() -> io::Result<[u16; 5]> {
    let mut ports = [0; 5];
    let listeners: io::Result<Vec<_>> = ports.iter().map(|_| TcpListener::bind(("127.0.0.1", 0))).collect();
    for (port, listener) in ports.iter_mut().zip(&listeners?) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}

/// 128 random bits in hexadecimal.
pub fn random_word() -> io::Result<String> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(hex(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_private_and_can_be_read_again() {
        let folder = tempfile::tempdir().expect("a folder");
        for transport in [Transport::Ipc, Transport::Tcp] {
            let (made, path) = Connection::make("k", transport, folder.path()).expect("made");
            let rights = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).expect("there").permissions());
            assert_eq!(rights & 0o777, 0o600);
            let read = Connection::read(&path).expect("read");
            assert_eq!((&read.key, read.ports(), read.key.len()), (&made.key, made.ports(), 32));
            fs::remove_file(path).expect("removed");
        }
    }

    #[test]
    fn sockets_are_found_under_either_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let (made, _) = Connection::make("k", Transport::Ipc, folder.path()).expect("made");
        assert_eq!(made.found(1), None);
        for (port, mark) in [(1, '-'), (2, ':')] {
            fs::write(format!("{}{mark}{port}", made.ip), "").expect("written");
            assert_eq!(made.found(port), Some(format!("ipc://{}{mark}{port}", made.ip)));
        }
    }
}
