//! Sessions, beside those that a user has elsewhere: `jupyter_client` on the host, and a Jupyter Kernel Gateway.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use mcp_sandbox_server::domain::id::SandboxId;

use crate::{median, programs::PROGRAMS, server::Server, setting};

const PACKAGES: [&str; 5] =
    ["ipykernel==7.4.0", "jupyter_client==8.10.0", "jupyter_kernel_gateway==3.0.1", "websocket-client", "pandas"];
/// The cells of a session: the first after its start, then the others.
const CELLS: [&str; 3] = ["x = 1", "x = 1", "import pandas as pd; pd.DataFrame({'a': [1]})"];

/// The table's first lines.
pub const HEAD: &str = "| a Python session, median ms | this server | `jupyter_client` on the host | Kernel Gateway on \
                        the host |\n| --- | ---: | ---: | ---: |";

/// The opponents, in a process of their own.
struct Jupyter {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Jupyter {
    fn start() -> Self {
        let python = environment().join("bin/python");
        let port =
            std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/latency/jupyter.py");
        let mut command = Command::new(python);
        command.arg(script).arg(port.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("the opponents");
        let (input, output) = (process.stdin.take().expect("its input"), process.stdout.take().expect("its output"));
        let mut jupyter = Self { process, input, output: BufReader::new(output) };
        assert_eq!(jupyter.line().trim(), "ready");
        jupyter
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line
    }

    fn session(&mut self, way: &str) -> Vec<f64> {
        let mut words = vec![way];
        words.extend(CELLS);
        let words = serde_json::to_string(&words).expect("JSON");
        writeln!(self.input, "{words}").expect("written");
        serde_json::from_str(&self.line()).expect("times")
    }

    fn stop(self) {
        let Self { mut process, input, .. } = self;
        drop(input);
        process.wait().expect("ended");
    }
}

/// Where the opponents are installed, once.
fn environment() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench-jupyter");
    if !folder.join("installed").exists() {
        let run = |command: &mut Command| assert!(command.status().expect("a command").success(), "{command:?}");
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder));
        run(Command::new(folder.join("bin/python")).args(["-m", "pip", "install", "-q"]).args(PACKAGES));
        std::fs::write(folder.join("installed"), "").expect("noted");
    }
    folder
}

/// The whole table.
pub async fn table(warm: &Server) {
    let rounds = setting("BENCH_ROUNDS", 30);
    let mut jupyter = Jupyter::start();
    let mut times: [[Vec<Duration>; 3]; 3] = Default::default();
    let python = &PROGRAMS[0];
    warm.run(&format!("new-{}", SandboxId::new()), python).await;
    for _ in 0..rounds {
        warm.settle(python, 2).await;
        let conversation = format!("session-{}", SandboxId::new());
        for (cell, times) in CELLS.iter().zip(&mut times[0]) {
            times.push(warm.cell(&conversation, cell).await);
        }
        warm.reset(&conversation).await;
        for (way, times) in ["client", "gateway"].into_iter().zip(&mut times[1..]) {
            for (ms, times) in jupyter.session(way).into_iter().zip(times) {
                times.push(Duration::from_secs_f64(ms / 1000.0));
            }
        }
    }
    jupyter.stop();
    let [ours, client, gateway] = times.map(|cells| cells.map(|mut times| median(&mut times)));
    for (row, name) in
        ["a new session and its first cell, `x = 1`", "`x = 1`", "`import pandas`, a frame"].iter().enumerate()
    {
        let of = |ms: f64| format!("{ms:.1} (1/{:.1})", ms / ours[row]);
        println!("| {name} | {:.1} | {} | {} |", ours[row], of(client[row]), of(gateway[row]));
    }
}
