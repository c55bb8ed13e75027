//! Engines to test on: a world is one engine with a runner image, an instance of its own and folders for data. Whatever
//! a test leaves behind is found by the instance's label when the world is closed, removed, and reported as a failure.

use std::{
    collections::HashMap,
    fmt::Write as _,
    os::unix::fs::PermissionsExt,
    panic::AssertUnwindSafe,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use bollard::{
    Docker, body_full,
    query_parameters::{BuildImageOptionsBuilder, ListContainersOptionsBuilder},
};
use futures_util::{FutureExt, StreamExt, TryStreamExt};
use mcp_sandbox_server::{
    adapters::engine::docker::{
        DockerEngine, DockerOptions, RuntimeSetting,
        proxy::{Proxy, ProxyOptions},
    },
    domain::{
        event::StreamKind,
        id::{InstanceId, SandboxId},
        outcome::Limits,
        skills::SkillFolders,
        users::RunnerUsers,
    },
    ports::engine::{Engine, Exit, ImageId, Listed, Sandbox, SandboxSpec, Volumes},
};
use tempfile::TempDir;
use tokio::{io::AsyncWriteExt, sync::OnceCell};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::cluster::{ByLines, Cluster};
use crate::fake::FakeEngine;

/// The test's runner image. It is no runner to a server: the label is not `true`.
const IMAGE: &str = "mcp-sandbox-test-plain:latest";

/// Where the tests look for Docker: `DOCKER_HOST` or the default socket.
pub fn docker_host() -> String {
    std::env::var("DOCKER_HOST").unwrap_or_else(|_| "unix:///var/run/docker.sock".to_owned())
}

/// The engine's interface itself, to set a scene or to look behind the adapter.
pub async fn docker() -> Docker {
    let docker = Docker::connect_with_host(&docker_host()).expect("a Docker engine is needed for this test");
    docker.negotiate_version().await.expect("a Docker engine is needed for this test")
}

/// How many containers of a server an engine has, dead or alive. Docker 20.10 can go on listing one that it has
/// removed, without its name: for `docker rm` there is none.
pub async fn containers(engine: &Docker, instance: &str) -> usize {
    let filters = [("label", vec![format!("sandbox.instance={instance}")])].into();
    let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
    let listed = engine.list_containers(Some(options)).await.expect("a list");
    listed.iter().filter(|one| one.names.iter().flatten().next().is_some()).count()
}

/// How one says things to the runner of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Programs {
    Bash,
    Script,
}

impl Programs {
    pub fn print(self, text: &str) -> String {
        match self {
            Self::Bash => format!("echo '{text}'\n"),
            Self::Script => format!("print {text}\n"),
        }
    }

    pub fn complain(self, text: &str) -> String {
        match self {
            Self::Bash => format!("echo '{text}' >&2\n"),
            Self::Script => format!("stderr {text}\n"),
        }
    }

    pub fn exit(self, code: u8) -> String {
        match self {
            Self::Bash | Self::Script => format!("exit {code}\n"),
        }
    }

    /// Prints that many bytes.
    pub fn flood(self, bytes: usize) -> String {
        match self {
            Self::Bash => format!("head -c {bytes} /dev/zero | tr '\\0' x\n"),
            Self::Script => format!("flood {bytes}\n"),
        }
    }

    /// Writes a file into `/data`.
    pub fn write(self, name: &str, content: &str) -> String {
        match self {
            Self::Bash => format!("printf %s '{content}' > /data/{name}\n"),
            Self::Script => format!("write {name} {content}\n"),
        }
    }

    /// Prints how much CPU it may use, in thousandths of a core, and then, where there is a kernel, its other limits.
    pub fn limits(self) -> String {
        match self {
            Self::Bash => "cd /sys/fs/cgroup; if [ -e cpu.max ]; then read -r quota period <cpu.max; else \
                           read -r quota <cpu/cpu.cfs_quota_us; read -r period <cpu/cpu.cfs_period_us; fi\n\
                           echo $((quota * 1000 / period))\n\
                           cat memory.max pids.max memory/memory.limit_in_bytes pids/pids.max 2>/dev/null; true\n"
                .to_owned(),
            Self::Script => "cpu\n".to_owned(),
        }
    }

    /// Never ends by itself.
    pub fn hang(self) -> String {
        match self {
            Self::Bash => "sleep 1000000\n".to_owned(),
            Self::Script => "hang\n".to_owned(),
        }
    }
}

pub struct World {
    pub engine: Arc<dyn Engine>,
    pub image: ImageId,
    pub instance: InstanceId,
    pub programs: Programs,
    pub root: TempDir,
    /// How sandboxes see folders in the root.
    pub volumes: Volumes,
    /// What stands in front of the engine, while the world lives.
    _proxy: Option<(DropGuard, TempDir)>,
}

/// What a program did, seen to its end.
#[derive(Debug)]
pub struct Seen {
    pub stdout: String,
    pub stderr: String,
    pub exit: Exit,
}

impl World {
    /// On Docker, with a tiny runner to the plain contract.
    pub async fn docker() -> Self {
        Self::docker_at(&docker_host(), |_| {}).await
    }

    /// On Docker at an address, with other options.
    pub async fn docker_at(host: &str, change: impl FnOnce(&mut DockerOptions)) -> Self {
        static IMAGE_ID: OnceCell<String> = OnceCell::const_new();
        let image = IMAGE_ID.get_or_init(plain_image).await.clone();
        let root = root();
        let mut options = DockerOptions::new(root.path());
        options.host = Some(host.to_owned());
        change(&mut options);
        let engine = DockerEngine::connect(options).await.expect("a Docker engine is needed for this test");
        Self::new(Arc::new(engine), image, Programs::Bash, root)
    }

    /// On Docker behind the proxy, in this process.
    pub async fn proxied() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("engine.sock");
        let listener = Proxy::listen(&socket).expect("a socket");
        let host = format!("unix://{}", socket.display());
        let shutdown = CancellationToken::new();
        // The engine is asked only once the socket is open, and the proxy has to know the world's root.
        let world = Self::docker_at(&host, |options| {
            let options = ProxyOptions {
                engine: docker_host(),
                root: options.root.clone(),
                users: RunnerUsers::one(1000),
                runtime: RuntimeSetting::Automatic,
                cgroup_parent: None,
                images: "".into(),
                folders: Vec::new(),
                skills: None,
            };
            let proxy = Proxy::new(options).expect("a proxy");
            tokio::spawn(proxy.serve(listener, shutdown.clone()));
        })
        .await;
        Self { _proxy: Some((shutdown.drop_guard(), folder)), ..world }
    }

    /// On the fake engine.
    pub fn fake() -> Self {
        let engine = FakeEngine::default();
        let image = ImageId("sha256:test-plain".to_owned());
        engine.add_image(image.clone());
        Self::new(Arc::new(engine), image.0, Programs::Script, root())
    }

    /// On the cluster of the environment.
    pub async fn kubernetes() -> Self {
        let cluster = Cluster::get().await;
        let image = cluster.lines_template().await;
        let root = tempfile::tempdir_in(&cluster.mount).expect("a folder of the claim");
        open_to_all(root.path());
        let engine = Arc::new(ByLines(cluster.engine().await));
        let volumes = Volumes::Shared { claim: cluster.claim, mount: cluster.mount };
        Self { volumes, ..Self::new(engine, image.0, Programs::Bash, root) }
    }

    fn new(engine: Arc<dyn Engine>, image: String, programs: Programs, root: TempDir) -> Self {
        Self {
            engine,
            image: ImageId(image),
            instance: InstanceId::new(),
            programs,
            root,
            volumes: Volumes::HostFolders,
            _proxy: None,
        }
    }

    /// A sandbox to be, with a folder of its own.
    pub fn spec(&self) -> SandboxSpec {
        let id = SandboxId::new();
        let data = self.root.path().join(id.to_string());
        std::fs::create_dir(&data).expect("a data folder");
        open_to_all(&data);
        SandboxSpec {
            id,
            instance: self.instance,
            image: self.image.clone(),
            data: self.volumes.volume(data),
            folders: Vec::new(),
            skills: SkillFolders::default(),
            limits: Limits { cpu_millis: 2000, ..Limits::default() },
            loading_cpu_millis: None,
            uid: 1000,
            own_init: false,
            deadline_unix_s: 4_000_000_000,
        }
    }

    /// The data folder of a specification, as this process sees it.
    pub fn folder(&self, spec: &SandboxSpec) -> PathBuf {
        self.root.path().join(spec.id.to_string())
    }

    pub async fn start(&self) -> Sandbox {
        self.engine.start(&self.spec()).await.expect("started")
    }

    /// A sandbox whose program, all of its input, has printed that it is ready.
    pub async fn start_ready(&self, program: &str) -> Sandbox {
        let mut sandbox = self.start().await;
        sandbox.stdin.write_all(program.as_bytes()).await.expect("written");
        sandbox.stdin.shutdown().await.expect("closed");
        read_until(&mut sandbox, "ready").await;
        sandbox
    }

    /// Starts a sandbox, runs a program in it to its end, and destroys it.
    pub async fn run(&self, program: &str) -> Seen {
        self.run_in(&self.spec(), program).await
    }

    pub async fn run_in(&self, spec: &SandboxSpec, program: &str) -> Seen {
        let sandbox = self.engine.start(spec).await.expect("started");
        let seen = feed_and_see(sandbox, program).await;
        self.engine.destroy(spec.id).await.expect("destroyed");
        seen
    }

    /// What the engine lists of this world.
    pub async fn listed(&self) -> Vec<Listed> {
        let all = self.engine.list().await.expect("listed");
        all.into_iter().filter(|listed| listed.instance == self.instance).collect()
    }

    /// Runs a test, then asserts that it left nothing; what is left is removed, whatever happened.
    pub async fn hold(self, test: impl AsyncFnOnce(&World)) {
        let outcome = AssertUnwindSafe(test(&self)).catch_unwind().await;
        let left = self.listed().await;
        for listed in &left {
            self.engine.destroy(listed.id).await.expect("destroyed");
        }
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
        assert!(left.is_empty(), "left behind: {left:?}");
    }
}

/// Hands a program over, closes the input, and sees output and exit to their ends.
pub async fn feed_and_see(mut sandbox: Sandbox, program: &str) -> Seen {
    sandbox.stdin.write_all(program.as_bytes()).await.expect("handed over");
    sandbox.stdin.shutdown().await.expect("closed");
    see(sandbox).await
}

/// Sees output and exit to their ends.
pub async fn see(sandbox: Sandbox) -> Seen {
    let output = async {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let mut output = sandbox.output;
        while let Some(piece) = output.next().await {
            let piece = piece.expect("output");
            assert!(!piece.bytes.is_empty(), "an empty piece of output");
            if piece.stream == StreamKind::Stdout { &mut stdout } else { &mut stderr }.extend_from_slice(&piece.bytes);
        }
        (stdout, stderr)
    };
    let ((stdout, stderr), exit) = tokio::join!(output, sandbox.exit);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    Seen { stdout: text(stdout), stderr: text(stderr), exit: exit.expect("an exit") }
}

/// Reads until a word was printed.
pub async fn read_until(sandbox: &mut Sandbox, word: &str) {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(word) {
        let piece = sandbox.output.next().await.expect("the stream goes on").expect("output");
        seen.extend_from_slice(&piece.bytes);
    }
}

fn root() -> TempDir {
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    open_to_all(root.path());
    root
}

fn open_to_all(folder: &Path) {
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o777)).expect("open");
}

/// The image that the runner images are built from: what `build.sh` takes, or makes where there is none.
pub fn base_image() -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("build.sh");
    let output = Command::new(&script).arg("base").stdin(Stdio::null()).output().expect("build.sh starts");
    assert!(output.status.success(), "build.sh base: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("a name").trim().to_owned()
}

/// A runner that reads a program to its end and runs it with bash, and nothing else.
async fn plain_image() -> String {
    let mut dockerfile = String::new();
    for line in [
        format!("FROM {}", base_image()),
        "RUN printf '#!/bin/bash\\nf=$(mktemp) && cat >$f && exec bash $f\\n' >/run-plain && chmod 755 /run-plain"
            .to_owned(),
        "LABEL sandbox.runner=false sandbox.language=test-plain".to_owned(),
        "ENTRYPOINT [\"/run-plain\"]".to_owned(),
    ] {
        writeln!(dockerfile, "{line}").expect("text");
    }
    build(IMAGE, &dockerfile).await
}

/// Builds an image from a Dockerfile alone, and returns its id.
pub async fn build(name: &str, dockerfile: &str) -> String {
    let docker = docker().await;
    let options = BuildImageOptionsBuilder::new().t(name).rm(true).forcerm(true).build();
    let steps = docker.build_image(options, None::<HashMap<_, _>>, Some(body_full(context(dockerfile).into())));
    let steps: Vec<_> = steps.try_collect().await.expect("the test's image is built");
    let image = docker.inspect_image(name).await.unwrap_or_else(|error| panic!("{error}: {steps:?}"));
    image.id.expect("an id")
}

/// What an image is built from: a Dockerfile alone.
pub fn context(dockerfile: &str) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_size(dockerfile.len() as u64);
    header.set_mode(0o644);
    let mut context = tar::Builder::new(Vec::new());
    context.append_data(&mut header, "Dockerfile", dockerfile.as_bytes()).expect("a context");
    context.into_inner().expect("a context")
}
