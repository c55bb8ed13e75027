//! What a user would take instead.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use futures_util::StreamExt;
use mcp_sandbox_server::{
    config::Config,
    domain::{
        id::{InstanceId, SandboxId},
        skills::SkillFolders,
    },
    ports::{
        engine::{Engine, SandboxSpec, Volume},
        runner::Runner,
    },
};
use tokio::io::AsyncWriteExt;

/// The engine's interface and nothing else: create, attach, start, program, end, remove.
#[derive(Clone, Copy)]
pub struct Bare<'a> {
    /// What is asked.
    pub engine: &'a dyn Engine,
    /// The limits.
    pub config: &'a Config,
    /// What is `/data`.
    pub data: &'a Path,
}

impl Bare<'_> {
    /// Runs a program; how long it took until the container was gone.
    pub async fn run(&self, runner: &Runner, program: &str) -> Duration {
        let spec = SandboxSpec {
            id: SandboxId::new(),
            instance: InstanceId::new(),
            image: runner.image.clone(),
            data: Volume::HostFolder(self.data.to_owned()),
            folders: Vec::new(),
            skills: SkillFolders::default(),
            limits: self.config.limits.limits(),
            loading_cpu_millis: None,
            uid: self.config.engine.runner_uid,
            own_init: runner.is_framed,
            deadline_unix_s: i64::MAX / 2,
        };
        let begun = Instant::now();
        let mut sandbox = self.engine.start(&spec).await.expect("started");
        let request = if runner.is_framed { framed(program) } else { program.as_bytes().to_vec() };
        sandbox.stdin.write_all(&request).await.expect("written");
        if !runner.is_framed {
            sandbox.stdin.shutdown().await.expect("closed");
        }
        while sandbox.output.next().await.is_some() {}
        sandbox.exit.await.expect("ended");
        self.engine.destroy(spec.id).await.expect("destroyed");
        begun.elapsed()
    }
}

/// CONFIG, PROGRAM, `STDIN_END` and GO of runner protocol 1.
fn framed(program: &str) -> Vec<u8> {
    let frame = |kind: u8, payload: &[u8]| {
        let mut bytes = vec![kind];
        bytes.extend(u32::try_from(payload.len()).expect("short").to_be_bytes());
        bytes.extend(payload);
        bytes
    };
    [frame(1, b"{}"), frame(2, program.as_bytes()), frame(5, b""), frame(3, b"")].concat()
}

/// Runs a command with the program as its input; how long it took.
///
/// # Panics
/// When it fails.
pub fn command(command: &mut Command, program: &str) -> Duration {
    use std::io::Write as _;
    let begun = Instant::now();
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().expect("a command");
    child.stdin.take().expect("its input").write_all(program.as_bytes()).expect("written");
    assert!(child.wait().expect("ended").success(), "{command:?}");
    begun.elapsed()
}

/// `docker run` of the same image with the same limits. The plain entrypoint of our framed images reads a program as
/// every plain runner does.
pub fn docker_run(config: &Config, runner: &Runner, data: &Path) -> Command {
    let limits = config.limits.limits();
    let mut command = Command::new("docker");
    let (memory, cpus) = (limits.memory_bytes.to_string(), format!("{:.3}", f64::from(limits.cpu_millis) / 1000.0));
    let pids = limits.processes_max.to_string();
    let (volume, user) = (format!("{}:/data", data.display()), config.engine.runner_uid.to_string());
    command.args(["run", "--rm", "-i", "--network", "none", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"]);
    command.args(["--security-opt", "no-new-privileges", "--memory", &memory, "--memory-swap", &memory]);
    command.args(["--cpus", &cpus, "--pids-limit", &pids, "--user", &user, "--volume", &volume]);
    if runner.is_framed {
        command.args(["--entrypoint", "/opt/runner/run"]);
    }
    command.arg(&runner.image.0);
    command
}

/// The interpreter alone, with nothing loaded ahead, inside a container of the image that is there already: the same
/// limits, and nothing of the container's own cost.
pub fn interpreter_alone(config: &Config, runner: &Runner, data: &Path, program: &str) -> Duration {
    const TIMED: &str = "IFS= read -r n; head -c \"$n\" >/tmp/in; b=$(date +%s%N); \
                         /opt/runner/run </tmp/in >/dev/null; e=$(date +%s%N); echo $((e - b))";
    let mut command = docker_run(config, runner, data);
    let image = command.get_args().last().expect("an image").to_owned();
    let words: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let before = words.iter().position(|word| word == "--entrypoint").unwrap_or(words.len() - 1);
    command = Command::new("docker");
    command.args(&words[..before]).args(["--entrypoint", "bash"]).arg(image).args(["-c", TIMED]);
    let input = format!("{}\n{program}", program.len());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a command");
    std::io::Write::write_all(&mut child.stdin.take().expect("its input"), input.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("ended");
    let nanoseconds = String::from_utf8_lossy(&output.stdout).trim().parse().expect("nanoseconds");
    Duration::from_nanos(nanoseconds)
}

/// The interpreter on the host that is compared with: the system's own, which starts fastest, where there is one; else
/// the one on the path, by its own name where that of the path is a script that looks for it.
pub fn host_interpreter(name: &str) -> String {
    let own = format!("/usr/bin/{name}");
    if Path::new(&own).exists() {
        return own;
    }
    let asked = Command::new(name).args(["-c", "import sys; print(sys.executable)"]).output();
    let found = asked.ok().filter(|output| name.starts_with("python") && output.status.success());
    found.map_or_else(|| name.to_owned(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
