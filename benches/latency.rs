//! What one program costs here, and what it costs by the ways a user would take instead.
//!
//! `cargo bench` prints medians in milliseconds and ratios to `docker run`. All cases of a program are interleaved in one
//! run, so that whatever else the machine does hits all of them alike. The runner images must be there (`./build.sh`).
//! `BENCH_ROUNDS` sets how often each case is measured (30), `BENCH_SECONDS` how long each throughput case lasts (10).

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, future::join_all};
use mcp_sandbox_server::{
    app::{self, App},
    ground::config::{self, Config, Sources},
    nouns::id::{InstanceId, SandboxId},
    ports::{
        engine::{Engine, SandboxSpec},
        runner::{Catalog, Protocol, Runner},
    },
    services::standby::Standbys,
};
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, net::TcpListener, time::interval};
use tokio_util::sync::CancellationToken;

const TOKEN: &str = "0123456789abcdef-of-the-bench";

struct Program {
    name: &'static str,
    language: &'static str,
    code: &'static str,
    /// The interpreter on the host, where there is one to compare with.
    host: Option<&'static [&'static str]>,
}

const PROGRAMS: [Program; 4] = [
    Program { name: "Python hello", language: "python", code: "print(1)\n", host: Some(&["python3", "-"]) },
    Program {
        name: "Python pandas",
        language: "python",
        code: "import pandas as pd\nprint(pd.DataFrame({'a': [1, 2, 1], 'b': [1, 2, 3]}).groupby('a').sum())\n",
        host: None,
    },
    Program {
        name: "TypeScript hello",
        language: "typescript",
        code: "const n: number = 1; console.log(n)\n",
        host: None,
    },
    Program { name: "Bash hello", language: "bash", code: "echo 1\n", host: Some(&["bash"]) },
];

struct Server {
    url: String,
    http: reqwest::Client,
    standbys: Standbys,
    catalog: Arc<Catalog>,
    config: Config,
    shutdown: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
}

impl Server {
    async fn start(root: PathBuf, more: &[(&str, &str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let mut environment: Vec<(String, String)> = [
            ("MCP_API_TOKEN", TOKEN),
            ("FILE_SECRET", "fedcba9876543210-of-the-bench"),
            ("SANDBOX_ROOT", root.to_str().expect("text")),
            ("PUBLIC_BASE_URL", &url),
            ("SANDBOX_SERVER__SHUTDOWN_GRACE_MS", "0"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec();
        environment.extend(std::env::var("DOCKER_HOST").ok().map(|host| ("DOCKER_HOST".to_owned(), host)));
        environment.extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let config = config::load(&Sources { environment, ..Sources::default() }).expect("settings");
        let app = App::build(&config).await.expect("the engine and the runner images: run ./build.sh");
        let (standbys, catalog) = (app.standbys.clone(), Arc::clone(&app.catalog));
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn(app.serve(listener, shutdown.clone()));
        Self { url: url + "/mcp", http: reqwest::Client::new(), standbys, catalog, config, shutdown, serving }
    }

    async fn run(&self, conversation: &str, program: &Program) -> Duration {
        let arguments = json!({"conversationId": conversation, "language": program.language, "code": program.code});
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                          "params": {"name": "sandbox.run_code", "arguments": arguments}});
        let begun = Instant::now();
        let response = self.http.post(&self.url).bearer_auth(TOKEN).json(&call).send().await.expect("an answer");
        let answer: Value = response.json().await.expect("JSON");
        let took = begun.elapsed();
        assert_eq!(answer["result"]["isError"], false, "{}: {answer}", program.name);
        took
    }

    fn runner(&self, program: &Program) -> Runner {
        self.catalog.find(&program.language.parse().expect("a language")).expect("a runner image: run ./build.sh")
    }

    /// Waits, untimed, until the standbys of a quiet minute are there.
    async fn settle(&self, program: &Program, wanted: usize) {
        let image = self.runner(program).image;
        let mut ticks = interval(Duration::from_millis(10));
        while self.standbys.standing_by(&image) < wanted || self.standbys.loading() > 0 {
            ticks.tick().await;
        }
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.serving.await.expect("the server ends well");
    }
}

/// The engine's interface and nothing else: create, attach, start, program, end, remove.
async fn bare(engine: &dyn Engine, config: &Config, runner: &Runner, program: &str, data: &Path) -> Duration {
    let spec = SandboxSpec {
        id: SandboxId::new(),
        instance: InstanceId::new(),
        image: runner.image.clone(),
        data: data.to_owned(),
        limits: config.limits.limits(),
        uid: config.engine.runner_uid,
        own_init: runner.protocol == Protocol::Framed,
        deadline_unix_s: i64::MAX / 2,
    };
    let begun = Instant::now();
    let mut sandbox = engine.start(&spec).await.expect("started");
    let request = match runner.protocol {
        Protocol::Plain => program.as_bytes().to_vec(),
        Protocol::Framed => framed(program),
    };
    sandbox.stdin.write_all(&request).await.expect("written");
    if runner.protocol == Protocol::Plain {
        sandbox.stdin.shutdown().await.expect("closed");
    }
    while sandbox.output.next().await.is_some() {}
    sandbox.exit.await.expect("ended");
    engine.destroy(spec.id).await.expect("destroyed");
    begun.elapsed()
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

fn command(command: &mut Command, program: &str) -> Duration {
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
fn docker_run(config: &Config, runner: &Runner, data: &Path) -> Command {
    let limits = config.limits.limits();
    let mut command = Command::new("docker");
    let (memory, cpus) = (limits.memory_bytes.to_string(), format!("{:.3}", f64::from(limits.cpu_millis) / 1000.0));
    let pids = limits.processes_max.to_string();
    let (volume, user) = (format!("{}:/data", data.display()), config.engine.runner_uid.to_string());
    command.args(["run", "--rm", "-i", "--network", "none", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"]);
    command.args(["--security-opt", "no-new-privileges", "--memory", &memory, "--memory-swap", &memory]);
    command.args(["--cpus", &cpus, "--pids-limit", &pids, "--user", &user, "--volume", &volume]);
    if runner.protocol == Protocol::Framed {
        command.args(["--entrypoint", "/opt/runner/run"]);
    }
    command.arg(&runner.image.0);
    command
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1000.0
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[tokio::main]
async fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    let warm = Server::start(folder.path().join("warm"), &[]).await;
    let cold = Server::start(folder.path().join("cold"), &[("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await;
    let bare_root = folder.path().join("bare");
    let data = bare_root.join("files");
    std::fs::create_dir_all(&data).expect("a folder");
    std::os::unix::fs::chown(&data, Some(warm.config.engine.runner_uid), None).expect("given to the runner's user");
    let mut bare_config = warm.config.clone();
    bare_config.root.clone_from(&bare_root);
    let (engine, probe) = app::engine(&bare_config).await.expect("the engine");
    println!("{}, API {}, {}, {} cores\n", probe.engine, probe.api_version, probe.runtime, probe.cpus);

    println!(
        "| one program, median ms (share of `docker run`) | new conversation | known conversation | no standby | engine's API | `docker run` | host |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    for program in &PROGRAMS {
        latency(&warm, &cold, engine.as_ref(), &bare_config, &data, program).await;
    }
    println!("\n| Bash hello, runs per second | server, new conversations | engine's API |\n| --- | ---: | ---: |");
    for clients in [1, 4, 16] {
        throughput(&warm, engine.as_ref(), &bare_config, &data, clients).await;
    }
    warm.stop().await;
    cold.stop().await;
}

async fn latency(warm: &Server, cold: &Server, engine: &dyn Engine, config: &Config, data: &Path, program: &Program) {
    let rounds = setting("BENCH_ROUNDS", 30);
    let runner = warm.runner(program);
    let mut times: [Vec<Duration>; 6] = Default::default();
    let known = format!("known-{}", SandboxId::new());
    for _ in 0..2 {
        warm.run(&known, program).await;
    }
    for _ in 0..rounds {
        warm.settle(program, 3).await;
        times[0].push(warm.run(&format!("new-{}", SandboxId::new()), program).await);
        warm.settle(program, 3).await;
        times[1].push(warm.run(&known, program).await);
        warm.settle(program, 3).await;
        times[2].push(cold.run(&format!("cold-{}", SandboxId::new()), program).await);
        times[3].push(bare(engine, config, &runner, program.code, data).await);
        times[4].push(command(&mut docker_run(config, &runner, data), program.code));
        if let Some([host, arguments @ ..]) = program.host {
            times[5].push(command(Command::new(host).args(arguments), program.code));
        }
    }
    let [new, known, no_standby, api, docker, host] =
        times.map(|mut times| (!times.is_empty()).then(|| median(&mut times)));
    let base = docker.unwrap_or(f64::NAN);
    let cell = |ms: Option<f64>| ms.map_or_else(|| "–".to_owned(), |ms| format!("{ms:.1} (1/{:.1})", base / ms));
    let cells = [new, known, no_standby, api, docker, host].map(cell);
    println!("| {} | {} |", program.name, cells.join(" | "));
}

async fn throughput(warm: &Server, engine: &dyn Engine, config: &Config, data: &Path, clients: usize) {
    let program = &PROGRAMS[3];
    let runner = warm.runner(program);
    let time = Duration::from_secs(setting("BENCH_SECONDS", 10));
    let rate = |counts: Vec<u32>| f64::from(counts.iter().sum::<u32>()) / time.as_secs_f64();
    warm.settle(program, 2).await;
    let ends = Instant::now() + time;
    let served = join_all((0..clients).map(|_| async {
        let mut count = 0;
        while Instant::now() < ends {
            warm.run(&format!("load-{}", SandboxId::new()), program).await;
            count += 1;
        }
        count
    }))
    .await;
    let ends = Instant::now() + time;
    let by_engine = join_all((0..clients).map(|_| async {
        let mut count = 0;
        while Instant::now() < ends {
            bare(engine, config, &runner, program.code, data).await;
            count += 1;
        }
        count
    }))
    .await;
    println!("| {clients} clients | {:.1} | {:.1} |", rate(served), rate(by_engine));
}
