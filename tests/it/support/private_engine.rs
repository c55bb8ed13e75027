//! A private Docker engine that a test can kill and restart, beside the machine's, with its own folders, control groups
//! and containerd. It needs root.
//!
//! Its drop always ends its processes, including its containers', and removes its mounts, control groups and folders.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use bollard::{
    Docker, body_full,
    query_parameters::{BuildImageOptionsBuilder, ImportImageOptionsBuilder},
};
use futures_util::TryStreamExt as _;
use tempfile::TempDir;

use super::{engines, until};

const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long what was killed may take to be gone.
const END_MAX: Duration = Duration::from_secs(5);

/// How it dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// Asked to end: it stops its containers first.
    InOrder,
    /// Killed; containers and containerd go on.
    Daemon,
    /// Killed with its containerd; containers go on.
    WithContainerd,
    /// Killed with its containerd and with what holds its containers; the containers themselves go on.
    WithShims,
}

impl Death {
    fn takes_containerd(self) -> bool {
        matches!(self, Self::WithContainerd | Self::WithShims)
    }
}

/// What it is made of; each names the engine's folder in its command line.
#[derive(Debug, Clone, Copy)]
enum Program {
    Dockerd,
    Containerd,
    Shim,
}

pub struct PrivateEngine {
    /// Sockets and what runs: a short path, since those of sockets may not be long.
    run: TempDir,
    /// Images and containers, on a disk.
    data: TempDir,
    dockerd: Option<Child>,
    containerd: Option<Child>,
}

impl PrivateEngine {
    /// An engine without images.
    pub async fn start() -> Self {
        let run = tempfile::Builder::new().prefix("sandbox-engine-").tempdir().expect("a folder");
        let data = tempfile::Builder::new().prefix("sandbox-engine-").tempdir_in(env!("CARGO_TARGET_TMPDIR"));
        let mut engine = Self { run, data: data.expect("a folder"), dockerd: None, containerd: None };
        engine.write("daemon.json", "{}");
        engine.write("containerd.toml", "version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n");
        engine.start_again(false).await;
        engine
    }

    /// Where it listens.
    pub fn host(&self) -> String {
        format!("unix://{}", self.run("sock").display())
    }

    pub fn docker(&self) -> Docker {
        Docker::connect_with_host(&self.host()).expect("an address")
    }

    /// Copies an image from the engine that the other tests use.
    pub async fn copy_image(&self, name: &str) {
        let shared = engines::docker().await;
        let image = shared.export_image(name).map_err(std::io::Error::other);
        let options = ImportImageOptionsBuilder::new().quiet(true).build();
        let copied = self.docker().import_image_stream(options, image, None).try_collect::<Vec<_>>().await;
        copied.unwrap_or_else(|error| panic!("{name} was not copied: {error}: build the images with ./build.sh"));
    }

    /// Makes an image of one that it has, from a Dockerfile that runs nothing.
    pub async fn derive_image(&self, name: &str, dockerfile: &str) {
        let options = BuildImageOptionsBuilder::new().t(name).rm(true).build();
        let context = body_full(engines::context(dockerfile).into());
        let steps: Result<Vec<_>, _> = self.docker().build_image(options, None, Some(context)).try_collect().await;
        steps.expect("the image is made");
    }

    /// Ends it in that way; returns when it is gone.
    pub async fn die(&mut self, death: Death) {
        self.signal(death);
        let containerd = if death.takes_containerd() { &mut self.containerd } else { &mut None };
        for child in [&mut self.dockerd, containerd].into_iter().filter_map(Option::as_mut) {
            until("the private engine is gone", async || child.try_wait().expect("a status").is_some()).await;
        }
        self.dockerd = None;
        if death.takes_containerd() {
            self.containerd = None;
        }
        if death == Death::WithShims {
            self.forget_shims();
        }
    }

    fn signal(&self, death: Death) {
        let programs: &[Program] = match death {
            Death::InOrder | Death::Daemon => &[Program::Dockerd],
            Death::WithContainerd => &[Program::Dockerd, Program::Containerd],
            Death::WithShims => &[Program::Dockerd, Program::Containerd, Program::Shim],
        };
        let pids: Vec<_> = programs.iter().flat_map(|program| self.processes(*program)).collect();
        kill(if death == Death::InOrder { "-TERM" } else { "-KILL" }, &pids);
    }

    /// Starts what is not there, and returns when it answers.
    pub async fn start_again(&mut self, live_restore: bool) {
        if self.containerd.is_none() {
            self.containerd = Some(self.spawn_containerd());
        }
        // A killed daemon does not take it away, and its number may belong to another process by now.
        drop(fs::remove_file(self.run("pid")));
        self.dockerd = Some(self.spawn_dockerd(live_restore));
        let host = self.host();
        until("the private engine answers", async || {
            let ended = self.dockerd.as_mut().and_then(|child| child.try_wait().expect("a status"));
            assert!(ended.is_none(), "dockerd ended by itself, {ended:?}:\n{}", self.log());
            match Docker::connect_with_host(&host) {
                Ok(docker) => docker.ping().await.is_ok(),
                Err(_) => false,
            }
        })
        .await;
    }

    fn spawn_containerd(&self) -> Child {
        let mut containerd = Command::new("containerd");
        containerd.args(["--log-level", "warn"]).arg("--config").arg(self.run("containerd.toml"));
        containerd.arg("--address").arg(self.run("c.sock"));
        containerd.arg("--root").arg(self.data.path().join("c")).arg("--state").arg(self.run("c"));
        self.spawn(containerd)
    }

    fn spawn_dockerd(&self, live_restore: bool) -> Child {
        // A separate network namespace: an engine configured without a bridge removes the bridge of the machine's
        // engine.
        let mut dockerd = Command::new("unshare");
        dockerd.args(["--net", "--", "dockerd"]);
        for (option, value) in [
            ("--host", PathBuf::from(self.host())),
            ("--pidfile", self.run("pid")),
            ("--exec-root", self.run("x")),
            ("--config-file", self.run("daemon.json")),
            ("--data-root", self.data.path().join("d")),
            ("--containerd", self.run("c.sock")),
            ("--cgroup-parent", Path::new("/").join(self.group())),
        ] {
            dockerd.arg(option).arg(value);
        }
        // Its containers have no network; control groups need no systemd.
        dockerd.args(["--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false"]);
        dockerd.args(["--exec-opt", "native.cgroupdriver=cgroupfs"]);
        dockerd.args(["--log-level", "warn"]);
        dockerd.args(live_restore.then_some("--live-restore"));
        self.spawn(dockerd)
    }

    fn spawn(&self, mut command: Command) -> Child {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.run("log")).expect("a log");
        let again = log.try_clone().expect("a log");
        let spawned = command.stdin(Stdio::null()).stdout(log).stderr(again).spawn();
        spawned.expect("dockerd and containerd, and the right to start them: run ./test.sh, which prepares both")
    }

    fn run(&self, name: &str) -> PathBuf {
        self.run.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.run(name), text).expect("written");
    }

    /// The unique name of its control groups.
    fn group(&self) -> String {
        self.run.path().file_name().expect("a name").to_string_lossy().into_owned()
    }

    fn log(&self) -> String {
        let text = fs::read_to_string(self.run("log")).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Its processes of one kind.
    fn processes(&self, program: Program) -> Vec<u32> {
        let name = match program {
            Program::Dockerd => "dockerd",
            Program::Containerd => "containerd",
            Program::Shim => "containerd-shim-runc-v2",
        };
        let folder = self.run.path().to_string_lossy().into_owned();
        let ours = |pid: &u32| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = line.split('\0');
            words.next().is_some_and(|first| Path::new(first).ends_with(name)) && line.contains(&folder)
        };
        pids().into_iter().filter(ours).collect()
    }

    /// Ends what is in its containers; a control group can be removed only when it is empty.
    fn end_contained(&self) {
        let until = Instant::now() + END_MAX;
        loop {
            let left = self.contained();
            if left.is_empty() || Instant::now() > until {
                return;
            }
            kill("-KILL", &left);
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Takes away the sockets that killed shims have left in a folder of the whole machine.
    fn forget_shims(&self) {
        let shims = fs::read_dir(self.run("c/io.containerd.runtime.v2.task/moby")).into_iter().flatten().flatten();
        let sockets = shims.filter_map(|shim| fs::read_to_string(shim.path().join("address")).ok());
        for socket in sockets.filter_map(|address| address.trim().strip_prefix("unix://").map(str::to_owned)) {
            drop(fs::remove_file(socket));
        }
    }

    /// The processes in its containers, those whose shims are dead included.
    fn contained(&self) -> Vec<u32> {
        let group = format!("/{}/", self.group());
        let inside =
            |pid: &u32| fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|groups| groups.contains(&group));
        pids().into_iter().filter(inside).collect()
    }
}

impl Drop for PrivateEngine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the private engine's log:\n{}", self.log());
        }
        self.signal(Death::WithShims);
        for child in [&mut self.dockerd, &mut self.containerd].into_iter().filter_map(Option::as_mut) {
            drop(child.wait());
        }
        self.end_contained();
        self.forget_shims();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let folders = [self.run.path(), self.data.path()];
        // The last mounted first.
        for line in mounts.lines().rev() {
            let point = line.split(' ').nth(4).unwrap_or_default();
            if folders.iter().any(|folder| Path::new(point).starts_with(folder)) {
                drop(Command::new("umount").arg("-l").arg(point).status());
            }
        }
        let groups = format!("find /sys/fs/cgroup -depth -type d -path '*/{0}*' -exec rmdir {{}} +", self.group());
        drop(Command::new("sh").arg("-c").arg(groups).stderr(Stdio::null()).status());
        drop(Command::new("rm").arg("-rf").args(folders).status());
    }
}

fn kill(signal: &str, pids: &[u32]) {
    if !pids.is_empty() {
        // Who is gone already is no failure.
        let pids = pids.iter().map(u32::to_string);
        drop(Command::new("kill").arg(signal).args(pids).stderr(Stdio::null()).status());
    }
}

fn pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("processes").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
