//! Runs the system programs that make, check and mount file systems: with an empty environment and a time limit.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read as _, Seek as _},
    os::unix::process::CommandExt as _,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    fs::MemfdFlags,
    process::{Pid, Signal, kill_process_group},
};

/// Where these programs are found.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
/// How often it is looked whether a program has ended: these take some milliseconds.
const POLL: Duration = Duration::from_millis(1);
/// How long a killed program may take to end: one that waits for a broken device does not end at all.
const KILLED_MAX: Duration = Duration::from_secs(2);
/// The longest output that is read, in bytes.
const OUTPUT_BYTES_MAX: u64 = 64 << 10;

/// Returns the standard output of a program, which is killed after `limit`.
pub(super) fn run<'a>(
    program: &str,
    args: impl IntoIterator<Item = &'a OsStr>,
    good: &[i32],
    limit: Duration,
) -> io::Result<Vec<u8>> {
    // Not pipes: a full pipe would block the program until it is read.
    let (stdout, stderr) = (buffer()?, buffer()?);
    let mut command = Command::new(program);
    command.args(args).env_clear().env("PATH", PATH).env("LC_ALL", "C").process_group(0);
    command.stdin(Stdio::null()).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
    let child = command.spawn().map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))?;
    let Some(status) = wait(child, limit)? else {
        let why = format!("{program}: it took longer than {} s and was killed", limit.as_secs_f32());
        return Err(io::Error::new(io::ErrorKind::TimedOut, why));
    };
    let (stdout, stderr) = (contents(stdout)?, contents(stderr)?);
    if status.code().is_some_and(|code| good.contains(&code)) {
        return Ok(stdout);
    }
    let words = String::from_utf8_lossy(if stderr.is_empty() { &stdout } else { &stderr }).into_owned();
    let why: String = words.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(300).collect();
    Err(io::Error::other(format!("{program}: {why} ({status})")))
}

fn buffer() -> io::Result<File> {
    Ok(rustix::fs::memfd_create("output", MemfdFlags::CLOEXEC)?.into())
}

fn contents(mut file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// `None` for a program that did not end in time; it is killed with its children and reaped.
fn wait(mut child: Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let status = ends(&mut child, limit)?;
    if status.is_none() {
        // It is not reaped, so its number is its own.
        kill_process_group(Pid::from_child(&child), Signal::KILL)?;
        if ends(&mut child, KILLED_MAX)?.is_none() {
            std::thread::spawn(move || child.wait());
        }
    }
    Ok(status)
}

/// How a child ends within a time.
fn ends(child: &mut Child, within: Duration) -> io::Result<Option<ExitStatus>> {
    let until = Instant::now() + within;
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() >= until {
            return Ok(status);
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> io::Result<Vec<u8>> {
        run("sh", ["-c", script].map(OsStr::new), &[0], limit)
    }

    #[test]
    fn output_is_returned_and_failure_says_why() {
        let long = Duration::from_mins(1);
        assert_eq!(shell("echo out; echo noise >&2", long).expect("status 0"), b"out\n");
        let error = shell("echo no  such   disk >&2; exit 8", long).expect_err("status 8");
        assert!(error.to_string().contains("sh: no such disk (exit status: 8)"), "{error}");
        // More than a pipe holds.
        assert_eq!(shell("head -c 300000 /dev/zero", long).expect("status 0").len(), 64 << 10);
    }

    #[test]
    fn a_program_is_killed_and_reaped_at_its_limit() {
        let folder = tempfile::tempdir().expect("a folder");
        let pid = folder.path().join("pid");
        let began = Instant::now();
        let script = format!("sleep 600 & echo $! > {}; wait", pid.display());
        let error = shell(&script, Duration::from_millis(500)).expect_err("it takes too long");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains("sh: it took longer than 0.5 s"), "{error}");
        assert!(began.elapsed() < Duration::from_mins(1), "{:?}", began.elapsed());
        let child = std::fs::read_to_string(pid).expect("its child's number");
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", child.trim())).ok();
        let until = Instant::now() + Duration::from_mins(1);
        // The child of the child is reaped by process 1, or stays a zombie where that is not its duty.
        while state().is_some_and(|stat| !stat.contains(") Z ")) {
            assert!(Instant::now() < until, "it still runs");
            std::thread::yield_now();
        }
    }
}
