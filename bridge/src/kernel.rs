//! The process of the kernel: started here, or adopted when it is the process that started this program. How it is
//! interrupted, ended, and how it ended by itself. What it writes outside of its messages goes to standard error.

use std::{io, os::unix::process::ExitStatusExt, path::Path, process::Stdio};

use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Pid, PidfdFlags, Signal, getpgid, kill_process, kill_process_group, pidfd_open},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, Command},
    sync::watch,
};

use crate::kernelspec::Kernelspec;

/// What a kernel may write outside of its messages, altogether. The rest is read and left out.
const STRAY_MAX_BYTES: usize = 1 << 20;

/// A kernel.
#[derive(Debug)]
pub enum Kernel {
    Started { child: Child, pid: Pid },
    Adopted { has_ended: watch::Receiver<bool>, pid: Pid },
}

impl Kernel {
    /// Starts the kernel in a process group of its own.
    pub fn start(spec: &Kernelspec, connection_file: &Path) -> io::Result<Self> {
        let words = spec.command(connection_file);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).envs(&spec.env).process_group(0).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let pid = id.and_then(Pid::from_raw).ok_or_else(|| io::Error::other("the kernel ended at once"))?;
        rustix::io::ioctl_fionbio(rustix::stdio::stderr(), true)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        tokio::spawn(async move { pass_on(stdout).await });
        tokio::spawn(async move { pass_on(stderr).await });
        Ok(Self::Started { child, pid })
    }

    /// Takes the process `pid` for the kernel.
    pub fn adopt(pid: Pid) -> io::Result<Self> {
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        let (tell, has_ended) = watch::channel(false);
        std::thread::Builder::new().spawn(move || {
            while poll(&mut [PollFd::new(&process, PollFlags::IN)], None).is_err() {}
            tell.send_replace(true);
        })?;
        Ok(Self::Adopted { has_ended, pid })
    }

    /// Waits for its end, and tells how it ended as far as that is known.
    pub async fn ended(&mut self) -> Value {
        match self {
            Self::Started { child, .. } => match child.wait().await {
                Ok(status) => match (status.code(), status.signal()) {
                    (Some(code), _) => json!({"status": code}),
                    (_, Some(signal)) => json!({"signal": signal}),
                    _ => json!({}),
                },
                Err(_) => json!({}),
            },
            Self::Adopted { has_ended, .. } => {
                // Its parent learns the status. An error is an end too: the thread is gone.
                let _ = has_ended.wait_for(|has_ended| *has_ended).await;
                json!({})
            }
        }
    }

    /// Whether no thread of the kernel runs or could run. It is then done with what it was given.
    pub fn is_asleep(&self) -> bool {
        let (Self::Started { pid, .. } | Self::Adopted { pid, .. }) = *self;
        let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())) else { return true };
        threads.flatten().all(|thread| {
            // The state follows the name, which is in parentheses and may contain some itself (proc_pid_stat(5)).
            let text = std::fs::read(thread.path().join("stat")).unwrap_or_default();
            let state = text.iter().rposition(|byte| *byte == b')').and_then(|end| text.get(end + 2));
            !matches!(state, Some(b'R' | b'D'))
        })
    }

    /// Interrupts the kernel and what it runs. Where the kernel leads no group of its own, it alone gets the signal.
    pub fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    /// Kills the kernel and its group.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        let (Self::Started { pid, .. } | Self::Adopted { pid, .. }) = *self;
        // It may have just ended; then there is nothing to reach.
        let _ = if getpgid(Some(pid)) == Ok(pid) { kill_process_group(pid, signal) } else { kill_process(pid, signal) };
    }
}

async fn pass_on(pipe: Option<impl AsyncRead + Unpin>) {
    let Some(mut pipe) = pipe else { return };
    let (mut buffer, mut left) = (vec![0; 16 << 10], STRAY_MAX_BYTES);
    while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
        let count = count.min(left);
        left -= count;
        // What the reader does not take in time is lost: the kernel must not wait for it.
        let _ = rustix::io::write(rustix::stdio::stderr(), &buffer[..count]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn end_of_an_adopted_kernel_is_told_as_often_as_it_is_asked_for() {
        let mut process = std::process::Command::new("true").spawn().expect("a process");
        let mut kernel = Kernel::adopt(Pid::from_child(&process)).expect("its pidfd");
        for _ in 0..2 {
            assert_eq!(kernel.ended().await, json!({}));
        }
        process.wait().expect("its status");
    }
}
