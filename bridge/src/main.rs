//! `sandbox-bridge`: relays in a sandbox between the frames of the server and a Jupyter kernel, which it starts by its
//! name or adopts. Owns the connection of the kernel and the size of what leaves it; must not know what a message means
//! to a client. `runners/README.md` describes its messages.
//!
//! Any program can be the kernel or send messages in its place, so everything is bounded. `ZeroMQ` is spoken only here,
//! because a length that a kernel claims can end the process that reads it.

mod connection;
mod kernel;
mod kernelspec;
mod limits;
/// The same as the server's.
#[path = "../../src/services/sessions/message.rs"]
#[allow(dead_code, reason = "shared with the server, which uses the rest")]
mod message;
mod outbox;
mod relay;
mod signer;
mod socket;
mod usage;

use std::{
    ffi::OsString,
    io::Write as _,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use connection::Connection;
use kernel::Kernel;
use kernelspec::Kernelspec;
use outbox::{Outbox, Weight, bridge_message};
use relay::{Relay, Server};
use rustix::process::{Pid, Resource, Rlimit, setrlimit};
use serde_json::json;
use signer::Signer;
use tokio::{
    net::unix::pipe::{Receiver, Sender},
    time::{Instant, timeout_at},
};

const USAGE: &str = "usage: sandbox-bridge KERNELSPEC | sandbox-bridge --adopt FILE [PID]";

/// How long a kernel may take from its start to its first answer.
const START_LIMIT: Duration = Duration::from_secs(30);

/// The address space of this process. A message takes a fraction of it; a length that a kernel claims and that does not
/// fit ends this process, also where the host grants every allocation (`vm.overcommit_memory=1`, as a kubelet sets it).
const OWN_BYTES_MAX: u64 = 1 << 30;

/// What this process was started for.
#[derive(Debug, PartialEq, Eq)]
enum Order {
    /// Start this kernel.
    Start(String),
    /// The parent is the kernel: leave it, so that it has no child that its program does not know.
    Detach(PathBuf),
    /// This process is the kernel, and listens as the file says.
    Adopt(PathBuf, Pid),
}

fn main() -> ExitCode {
    let done = match order(std::env::args_os().skip(1)) {
        None => Err(USAGE.to_owned()),
        Some(Order::Detach(file)) => detach(&file).map_err(|error| error.to_string()),
        Some(Order::Start(name)) => serve(|| start(&name)),
        Some(Order::Adopt(file, pid)) => serve(|| adopt(&file, pid)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            // Where a kernel has filled it, standard error takes nothing, since it does not block.
            let _ = writeln!(std::io::stderr(), "sandbox-bridge: {message}");
            ExitCode::FAILURE
        }
    }
}

fn order(mut words: impl Iterator<Item = OsString>) -> Option<Order> {
    let first = words.next()?.into_string().ok()?;
    let order = if first == "--adopt" {
        let file = words.next()?.into();
        match words.next() {
            None => Order::Detach(file),
            Some(pid) => Order::Adopt(file, Pid::from_raw(pid.to_str()?.parse().ok().filter(|pid| *pid > 1)?)?),
        }
    } else if first.starts_with('-') {
        return None;
    } else {
        Order::Start(first)
    };
    words.next().is_none().then_some(order)
}

fn detach(file: &Path) -> std::io::Result<()> {
    let kernel = rustix::process::getppid().ok_or_else(|| std::io::Error::other("there is no parent"))?;
    let mut again = std::process::Command::new(std::env::current_exe()?);
    // An interrupt goes to the kernel's group, and this program must outlive it.
    again.arg("--adopt").arg(file).arg(kernel.as_raw_nonzero().to_string()).process_group(0).spawn()?;
    Ok(())
}

/// Serves the session whose kernel `begin` has.
///
/// # Errors
/// Why the session failed. Where this is the program of process 1, its status then does not say that it ended well.
#[tokio::main(flavor = "current_thread")]
async fn serve(begin: impl FnOnce() -> Result<(Kernel, Connection, Kernelspec), String>) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    let input = rustix::stdio::stdin().try_clone_to_owned().and_then(Receiver::from_owned_fd).map_err(failed)?;
    let output = rustix::stdio::stdout().try_clone_to_owned().and_then(Sender::from_owned_fd).map_err(failed)?;
    match begin() {
        Ok((kernel, connection, spec)) => relay(Server { input, output }, kernel, &connection, spec).await,
        Err(message) => {
            refuse(&output, &message).await;
            Err(message)
        }
    }
}

fn cannot_start(error: &std::io::Error) -> String {
    format!("the kernel cannot be started: {error}")
}

fn start(name: &str) -> Result<(Kernel, Connection, Kernelspec), String> {
    let spec = Kernelspec::find(name)?;
    let made = Connection::make(name, spec.transport(), &std::env::temp_dir());
    let (connection, file) = made.map_err(|error| cannot_start(&error))?;
    Ok((Kernel::start(&spec, &file).map_err(|error| cannot_start(&error))?, connection, spec))
}

fn adopt(file: &Path, pid: Pid) -> Result<(Kernel, Connection, Kernelspec), String> {
    let connection = Connection::read(file).map_err(|error| cannot_start(&error))?;
    Ok((Kernel::adopt(pid).map_err(|error| cannot_start(&error))?, connection, Kernelspec::default()))
}

/// Reports why there is no session.
async fn refuse(output: &Sender, message: &str) {
    let mut outbox = Outbox::default();
    outbox.push(&bridge_message("failed", &json!({"message": message})), Weight::Own);
    outbox.finish(output).await;
}

async fn relay(server: Server, mut kernel: Kernel, connection: &Connection, spec: Kernelspec) -> Result<(), String> {
    // Not before the kernel is started, which would inherit it.
    let limit = Rlimit { current: Some(OWN_BYTES_MAX), maximum: Some(OWN_BYTES_MAX) };
    if let Err(error) = setrlimit(Resource::As, limit) {
        eprintln!("sandbox-bridge: its memory is not limited: {error}");
    }
    let until = Instant::now() + START_LIMIT;
    let connected = tokio::select! {
        connected = timeout_at(until, connection.connect()) => match connected {
            Ok(connected) => connected.map_err(|error| format!("the kernel's sockets do not answer: {error}")),
            Err(_) => Err("the kernel did not start in time".to_owned()),
        },
        how = kernel.ended() => Err(format!("the kernel ended before it listened: {how}")),
    };
    let sockets = match connected {
        Ok(sockets) => sockets,
        Err(message) => {
            // Before an adopted kernel ends, with which process 1 ends all that is in the sandbox.
            refuse(&server.output, &message).await;
            kernel.kill();
            return Err(message);
        }
    };
    let signer = Signer::new(&connection.key);
    let relay = Relay::new(server, sockets, kernel, signer, spec, until).map_err(|error| error.to_string())?;
    relay.run().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_parsed_strictly() {
        let parse = |line: &str| order(line.split_whitespace().map(OsString::from));
        assert_eq!(parse("python3"), Some(Order::Start("python3".to_owned())));
        assert_eq!(parse("--adopt /tmp/f"), Some(Order::Detach("/tmp/f".into())));
        assert!(matches!(parse("--adopt /tmp/f 12"), Some(Order::Adopt(..))));
        for wrong in ["", "--adopt", "--adopt f x", "--adopt f 0", "--adopt f 1", "--adopt f -5", "a b", "--help"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
