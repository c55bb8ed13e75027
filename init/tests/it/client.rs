//! A test client of the protocol. Dropping it asserts that no process is left.

use std::{
    fs,
    io::{Read, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

/// A frame, as bytes.
pub fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&[kind][..], &length, payload].concat()
}

/// Configuration, program, no input, start.
pub fn request(config: &str, program: &str) -> Vec<u8> {
    let parts = [frame(1, config.as_bytes()), frame(2, program.as_bytes()), frame(5, b""), frame(3, b"")];
    parts.concat()
}

/// The collected answer.
#[derive(Debug, Default)]
pub struct Reply {
    /// The payloads of READY.
    pub ready: Vec<Value>,
    /// All of standard output.
    pub stdout: Vec<u8>,
    /// All of standard error.
    pub stderr: Vec<u8>,
    /// The payload of EXIT.
    pub exit: Option<Value>,
    /// The payload of ERROR.
    pub error: Option<Value>,
}

/// A running init with a folder of its own.
pub struct Init {
    process: Child,
    /// Receives frames.
    pub input: Option<ChildStdin>,
    output: Option<ChildStdout>,
    /// Holds the program, and whatever a test wants to leave.
    pub folder: TempDir,
}

impl Init {
    /// Starts `command FILE` cold.
    pub fn cold(command: &str) -> Self {
        Self::start(&[], &[command])
    }

    /// Bash, cold.
    pub fn bash() -> Self {
        Self::cold("bash")
    }

    /// Starts with `flags`; the program's file is added to `command`.
    pub fn start(flags: &[&str], command: &[&str]) -> Self {
        Self::with(&[], flags, command)
    }

    /// The same with more variables.
    pub fn with(variables: &[&str], flags: &[&str], command: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("main");
        // As an engine starts it: a shell that runs these tests in its background has them ignore some signals.
        let mut process = Command::new("env")
            .arg("--default-signal")
            .args(variables)
            .args([env!("CARGO_BIN_EXE_sandbox-init"), "--program"])
            .arg(&program)
            .args(flags)
            .arg("--")
            .args(command)
            .arg(&program)
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the init starts");
        let input = process.stdin.take();
        let output = process.stdout.take();
        Self { process, input, output, folder }
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        self.input.as_mut().expect("still open").write_all(bytes).expect("the init reads");
    }

    /// The next frame, or `None` at the end.
    pub fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut header = [0; 5];
        let output = self.output.as_mut()?;
        output.read_exact(&mut header).ok()?;
        let length = u32::from_be_bytes(header[1..].try_into().expect("four bytes"));
        assert!(length <= 1 << 20, "a frame of {length} bytes");
        let mut payload = vec![0; length as usize];
        output.read_exact(&mut payload).expect("a whole frame");
        Some((header[0], payload))
    }

    /// Waits for standard output to hold `text`.
    pub fn until(&mut self, text: &str) {
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains(text) {
            let (kind, payload) = self.next().expect("more frames");
            if kind == 0x82 {
                seen.extend(payload);
            }
        }
    }

    /// Collects the answer up to the end; asserts that EXIT or ERROR is the last frame.
    pub fn reply(&mut self) -> Reply {
        let mut reply = Reply::default();
        while let Some((kind, payload)) = self.next() {
            assert!(reply.exit.is_none() && reply.error.is_none(), "a frame 0x{kind:x} after the last");
            match kind {
                0x81 => reply.ready.push(json(&payload)),
                0x82 => reply.stdout.extend(payload),
                0x83 => reply.stderr.extend(payload),
                0x84 => reply.exit = Some(json(&payload)),
                0x85 => reply.error = Some(json(&payload)),
                other => panic!("a frame of type 0x{other:x}"),
            }
        }
        reply
    }

    pub fn is_running(&mut self) -> bool {
        self.process.try_wait().expect("waited").is_none()
    }

    /// The exit status of the init.
    pub fn status(&mut self) -> i32 {
        self.process.wait().expect("waited").code().expect("not by a signal")
    }

    /// Stops reading. The init's own end, and what is left to check.
    pub fn hang_up(self) -> i32 {
        let mut this = self;
        drop(this.output.take());
        this.status()
    }

    /// Memory of the init.
    pub fn memory_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).expect("status");
        let line = status.lines().find(|line| line.starts_with("VmRSS")).expect("resident memory");
        line.split_ascii_whitespace().nth(1).expect("a number").parse().expect("a number")
    }

    /// The signals that it has handlers for and those that it blocks, a bit each.
    pub fn signal_masks(&self) -> (u64, u64) {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).expect("status");
        let mask = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a mask");
            u64::from_str_radix(line.trim(), 16).expect("a number")
        };
        (mask("SigCgt:"), mask("SigBlk:"))
    }

    /// Runs one program in Bash.
    pub fn run(program: &str) -> Reply {
        let mut init = Self::bash();
        init.send(&request("{}", program));
        let reply = init.reply();
        assert_eq!(init.status(), 0);
        reply
    }
}

impl Drop for Init {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.process.wait();
        if !std::thread::panicking() {
            assert_eq!(left(&self.folder), Vec::<String>::new(), "processes are left");
        }
    }
}

/// The processes whose working directory is the test's.
fn left(folder: &TempDir) -> Vec<String> {
    let here = folder.path();
    let of = |entry: fs::DirEntry| {
        let at = fs::read_link(entry.path().join("cwd")).ok()?;
        at.starts_with(here).then(|| fs::read_to_string(entry.path().join("stat")).unwrap_or_default())
    };
    fs::read_dir("/proc").expect("proc").flatten().filter_map(of).collect()
}

fn json(payload: &[u8]) -> Value {
    serde_json::from_slice(payload).expect("JSON")
}
