//! A tool server that is a process of this machine. It gets `PATH` and the variables that are named, and nothing else
//! of this server's environment. When its connection ends, its input is closed, and it and its descendants get SIGTERM
//! and then SIGKILL.
//!
//! ```text
//! end ─ waits for the end of the connection, then ends the group ─ a stopped runtime drops it, which kills the group
//! log ─ standard error, until it is closed
//! ```
//!
//! A descendant is found by its process group or its parents. One that left the group and whose parent has ended before
//! the connection does is not found.

use std::{
    collections::HashMap,
    ffi::OsStr,
    fs, io,
    os::fd::{AsFd as _, OwnedFd},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group, pidfd_open, pidfd_send_signal,
    waitid, waitpgid,
};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    time::{Instant, sleep, timeout},
};
use tracing::info;

use super::{failure::Secrets, streams::Link};

/// How long it has after SIGTERM.
const TERM_MAX: Duration = Duration::from_secs(2);
/// How long rmcp may take to close its input, and how often it is looked whether it has ended.
const INPUT_MAX: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(20);
/// The longest piece of its standard error that is read at once, which has room for a whole secret, and the lines that
/// are logged.
const PIECE_BYTES_MAX: u64 = 128 << 10;
const LINES_MAX: usize = 200;

/// Starts it in a process group of its own. It ends with `link`.
///
/// # Errors
/// There is no such program, or it cannot be started.
pub(super) fn start(
    program: &str,
    arguments: &[String],
    env: &[(String, SecretString)],
    path: &OsStr,
    link: &Link,
    secrets: Arc<Secrets>,
) -> io::Result<(ChildStdout, ChildStdin)> {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("PATH", path);
    command.envs(env.iter().map(|(name, value)| (name, value.expose_secret())));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.process_group(0).kill_on_drop(true).spawn()?;
    let gone = || io::Error::other("its streams are not there");
    let stdin = child.stdin.take().ok_or_else(gone)?;
    let stdout = child.stdout.take().ok_or_else(gone)?;
    let stderr = child.stderr.take().ok_or_else(gone)?;
    let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)).ok_or_else(gone)?;
    tokio::spawn(log(program.to_owned(), stderr, secrets));
    let input = stdin.as_fd().try_clone_to_owned()?;
    tokio::spawn(end(child, Group(Some(pid)), input, link.clone()));
    Ok((stdout, stdin))
}

/// A process group whose leader has not been reaped, so its number belongs to it.
struct Group(Option<Pid>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.0 {
            let _ = kill_process_group(pid, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// `input` holds the process' input open, so that it does not end, and leave its children, before they are found.
async fn end(mut child: Child, mut group: Group, input: OwnedFd, link: Link) {
    link.ended.cancelled().await;
    let Some(leader) = group.0 else { return };
    let found = tokio::task::spawn_blocking(move || descendants(leader)).await.unwrap_or_default();
    let all = |signal| {
        group.signal(signal);
        for process in &found {
            let _ = pidfd_send_signal(process, signal);
        }
    };
    let _ = timeout(INPUT_MAX, link.input_closed.cancelled()).await;
    drop(input);
    all(Signal::TERM);
    // It is not reaped yet: the group's number must stay its own until the last signal.
    let ended = || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::Pid(leader), options), Ok(None))
    };
    let until = Instant::now() + TERM_MAX;
    while !ended() && Instant::now() < until {
        sleep(LOOK).await;
    }
    all(Signal::KILL);
    let _ = child.wait().await;
    group.0 = None;
    // As process 1 this server is the parent of what its children left.
    while let Ok(reaped) = waitpgid(leader, WaitOptions::NOHANG) {
        if reaped.is_none() {
            sleep(LOOK).await;
        }
    }
}

/// The processes below one, by handles that are theirs even when they end.
fn descendants(of: Pid) -> Vec<OwnedFd> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // After the name, which may hold spaces and brackets: the state, and the parent.
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        if let Some(parent) = parent {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut below = children.remove(&of.as_raw_nonzero().get()).unwrap_or_default();
    let mut at = 0;
    while let Some(pid) = below.get(at).copied() {
        below.extend(children.remove(&pid).unwrap_or_default());
        at += 1;
    }
    let pids = below.into_iter().filter_map(Pid::from_raw);
    pids.filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()).collect()
}

async fn log(program: String, stderr: ChildStderr, secrets: Arc<Secrets>) {
    let mut stderr = BufReader::new(stderr);
    let (mut lines, mut piece, mut is_rest) = (0, Vec::new(), false);
    loop {
        piece.clear();
        match (&mut stderr).take(PIECE_BYTES_MAX).read_until(b'\n', &mut piece).await {
            Ok(0) | Err(_) => return,
            // Only the beginning of a long line is shown.
            Ok(_) if !is_rest && lines < LINES_MAX => {
                lines += 1;
                let line = secrets.clean(&String::from_utf8_lossy(&piece));
                info!(program, line, "a tool server wrote to its standard error");
                if lines == LINES_MAX {
                    info!(program, "the rest of what it writes to its standard error is not logged");
                }
            }
            Ok(_) => {}
        }
        is_rest = !piece.ends_with(b"\n");
    }
}
