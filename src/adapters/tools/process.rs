//! A tool server that is a process of this machine. It gets `PATH` and what the operator names of the environment, and
//! ends with its connection, all of its process group with it.

use std::{io, process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process_group};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    task::JoinHandle,
    time::timeout,
};
use tracing::info;

use super::bounded;

/// How long it has to end by itself once its standard input has ended, and again after SIGTERM.
const END_MAX: Duration = Duration::from_secs(2);
/// The longest line of its standard error that is logged, in bytes, and how many lines are.
const LINE_BYTES_MAX: u64 = 4096;
const LINES_MAX: usize = 1000;

/// A process. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Process {
    child: Option<Child>,
    stderr: JoinHandle<()>,
}

impl Process {
    /// Starts it in a process group of its own.
    ///
    /// # Errors
    /// There is no such program, or it cannot be started.
    pub(super) fn start(
        program: &str,
        arguments: &[String],
        env: &[(String, SecretString)],
    ) -> io::Result<(Self, (ChildStdout, ChildStdin))> {
        let mut command = Command::new(program);
        command.args(arguments).env_clear().process_group(0).kill_on_drop(true);
        command.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        command.envs(env.iter().map(|(name, value)| (name, value.expose_secret())));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let gone = || io::Error::other("its streams are gone");
        let stdout = child.stdout.take().ok_or_else(gone)?;
        let stdin = child.stdin.take().ok_or_else(gone)?;
        let stderr = child.stderr.take().ok_or_else(gone)?;
        let stderr = tokio::spawn(log(program.to_owned(), stderr));
        Ok((Self { child: Some(child), stderr }, (stdout, stdin)))
    }
}

async fn log(program: String, stderr: ChildStderr) {
    let mut stderr = BufReader::new(stderr);
    let mut count = 0;
    loop {
        let mut line = Vec::new();
        match (&mut stderr).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) if count < LINES_MAX => {
                count += 1;
                let line = bounded(String::from_utf8_lossy(&line).trim_end());
                info!(program, line, "a tool server wrote to its standard error");
            }
            Ok(_) => {}
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let Some(group) = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)) else { return };
        let stderr = self.stderr.abort_handle();
        let end = async move {
            // Its standard input has ended with the connection.
            if timeout(END_MAX, child.wait()).await.is_err() {
                let _ = kill_process_group(group, Signal::TERM);
                let _ = timeout(END_MAX, child.wait()).await;
            }
            // Whatever it left.
            let _ = kill_process_group(group, Signal::KILL);
            let _ = child.wait().await;
            stderr.abort();
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(end)),
            // The process ends, and nothing can wait any more.
            Err(_) => drop(kill_process_group(group, Signal::KILL)),
        }
    }
}
