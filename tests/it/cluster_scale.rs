//! What a cluster gives: whole servers, without their HTTP, on the model of a cluster. `scripts/scale.sh` prints the
//! tables of docs/scale.md; the short form holds the model and the servers' own limits to each other.

mod model;

use std::{path::Path, sync::Arc, time::Duration};

use futures_util::future::join_all;
use mcp_sandbox_server::{
    adapters::storage::DiskStorage,
    app::{App, StartError},
    domain::{
        outcome::Ended,
        owner::{ConversationKey, Principal},
        users::RunnerUsers,
    },
    ports::engine::Engine,
    services::{
        isolation_check::Isolation,
        janitor::Janitor,
        runs::{RunRequest, Runs},
        standby::Standbys,
    },
};
use tempfile::TempDir;
use tokio::{
    net::TcpListener,
    task::JoinHandle,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use self::model::{Cluster, Size};
use crate::support::{scale::long, server::settings};

const LONG: Duration = Duration::from_mins(10);

/// One server on the cluster.
struct Server {
    runs: Runs,
    standbys: Standbys,
    janitor: Janitor,
    shutdown: CancellationToken,
    serving: JoinHandle<Result<(), StartError>>,
}

/// What clients do.
#[derive(Debug, Clone, Copy)]
struct Load {
    servers: usize,
    /// For each server.
    clients: usize,
    /// How many runs each client begins, and how long it waits between two.
    runs: usize,
    pause: Duration,
    /// How long a program takes.
    program_ms: u64,
    /// A client stays in its conversation; otherwise each run has a new one.
    stays: bool,
}

/// What came of it.
#[derive(Debug)]
struct Measured {
    runs_per_s: f64,
    median: Duration,
    slowest_tenth: Duration,
    peak: usize,
    /// The part of runs that had a standby.
    warm: f64,
}

async fn serve(cluster: &Arc<Cluster>, root: &Path, more: &[(&str, &str)]) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let config = settings(root, more);
    let users = RunnerUsers::one(rustix::process::getuid().as_raw());
    let store = Arc::new(DiskStorage::at(root, users).expect("a root"));
    let probe = cluster.probe().await.expect("the model");
    let engine = Arc::clone(cluster) as Arc<dyn Engine>;
    let app = App::assemble(&config, store, engine, probe).await.expect("a server");
    app.parts.shared.isolation.set(Isolation::Verified { notes: Vec::new(), rejected: Vec::new() });
    let (runs, standbys, janitor) =
        (app.parts.api.runs.clone(), app.parts.shared.standbys.clone(), app.parts.shared.sandboxes.janitor.clone());
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(app.serve(listener, shutdown.clone()));
    Server { runs, standbys, janitor, shutdown, serving }
}

/// The runs of one client; how long each took.
async fn client(runs: &Runs, name: String, load: Load) -> Vec<Duration> {
    let mut times = Vec::new();
    for turn in 0..load.runs {
        let conversation = if load.stays { name.clone() } else { format!("{name}-{turn}") };
        let key = ConversationKey::new(Principal::default(), conversation.parse().expect("an id"));
        let program = format!("sleep {}ms\nprint {turn}", load.program_ms);
        let request = RunRequest::new(key, "python".parse().expect("a language"), program.into());
        let began = Instant::now();
        let handle = runs.begin(request).expect("a run");
        let run = runs.get(&Principal::default(), handle.id()).expect("a run");
        let report = run.wait(LONG).await.result.expect("it is over").expect("a report");
        assert!(matches!(report.outcome.ended, Ended::Exited { code: 0 }), "{:?}", report.outcome);
        times.push(began.elapsed());
        sleep(load.pause).await;
    }
    times
}

async fn measure(size: Size, load: Load, more: &[(&str, &str)]) -> Measured {
    let cluster = Cluster::new(size);
    cluster.fake.add_runner("python");
    let folder = TempDir::new().expect("a folder");
    let clients = load.clients.to_string();
    let mut pairs = vec![
        ("SANDBOX_ADMISSION__SLOTS", clients.as_str()),
        ("SANDBOX_ADMISSION__QUEUE_WAIT_MS", "600000"),
        ("SANDBOX_STANDBY__TOTAL_MAX", "0"),
        ("SANDBOX_QUOTA__FREE_BYTES_MIN", "0"),
    ];
    pairs.extend(more);
    let start = |at: usize| folder.path().join(at.to_string());
    let mut servers = Vec::new();
    for at in 0..load.servers {
        servers.push(serve(&cluster, &start(at), &pairs).await);
    }
    // What a server opens at its start takes real time.
    tokio::time::pause();
    let began = Instant::now();
    let all = servers.iter().enumerate().flat_map(|(at, server)| {
        (0..load.clients).map(move |number| client(&server.runs, format!("c{at}-{number}"), load))
    });
    let mut times = join_all(all).await.concat();
    // Pods that are still to be deleted are owed; standbys stay.
    while servers.iter().any(|server| server.janitor.unwanted() > 0) {
        sleep(Duration::from_millis(20)).await;
    }
    let took = (began.elapsed().saturating_sub(load.pause)).as_secs_f64();
    tokio::time::resume();
    let taken: u64 = servers.iter().map(|server| server.standbys.taken()).sum();
    for server in servers {
        server.shutdown.cancel();
        server.serving.await.expect("no panic").expect("it ends in order");
    }
    assert!(cluster.fake.live().is_empty(), "no pod is left");
    times.sort_unstable();
    let count = |of: usize| f64::from(u32::try_from(of).expect("a count"));
    Measured {
        runs_per_s: count(times.len()) / took,
        median: times[times.len() / 2],
        slowest_tenth: times[times.len() * 9 / 10],
        peak: cluster.peak(),
        warm: count(usize::try_from(taken).expect("a count")) / count(times.len()),
    }
}

/// Nodes of eight cores, and a control plane of so many.
fn size(nodes: usize, control_cores: usize) -> Size {
    Size { nodes, node_cores: 8, control_cores }
}

const NEW: Load = Load { servers: 2, clients: 8, runs: 4, pause: Duration::ZERO, program_ms: 200, stays: false };

#[tokio::test]
async fn rate_is_bounded_by_nodes_or_by_the_control_plane() {
    let busy = Load { clients: 16, ..NEW };
    for (size, bounded_by) in [
        (Size { nodes: 2, node_cores: 2, control_cores: 8 }, "nodes"),
        (Size { nodes: 50, node_cores: 2, control_cores: 1 }, "control plane"),
    ] {
        let measured = measure(size, busy, &[]).await;
        let bound = size.pods_per_s();
        assert!(measured.runs_per_s <= bound * 1.05, "{bounded_by}: {measured:?} is more than {bound}");
        assert!(measured.runs_per_s >= bound * 0.5, "{bounded_by}: {measured:?} is less than half of {bound}");
    }
}

#[tokio::test]
async fn tables_of_the_document() {
    if !long() {
        return;
    }
    println!("| nodes | control plane | servers | clients | programs | runs a second | median | 90 % | pods at once |");
    println!("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for (nodes, control, servers, clients, program_ms, runs) in [
        (10, 8, 2, 50, 200, 12),
        (100, 8, 2, 200, 200, 6),
        (10, 32, 4, 100, 200, 6),
        (100, 32, 4, 100, 200, 6),
        (1000, 32, 4, 100, 200, 6),
        (1000, 32, 8, 500, 10_000, 2),
    ] {
        let load = Load { servers, clients, runs, program_ms, ..NEW };
        let measured = measure(size(nodes, control), load, &[]).await;
        let Measured { runs_per_s, median, slowest_tenth, peak, .. } = measured;
        println!(
            "| {nodes} | {control} cores | {servers} | {} | {:.1} s | {runs_per_s:.0} | {:.2} s | {:.2} s | {peak} |",
            servers * clients,
            Duration::from_millis(program_ms).as_secs_f64(),
            median.as_secs_f64(),
            slowest_tenth.as_secs_f64(),
        );
    }
    println!("\n| conversations of a server, a run each 20 s | runs a second | with a standby | median |");
    println!("| ---: | ---: | ---: | ---: |");
    for clients in [10, 50, 100, 200, 400] {
        let load = Load { servers: 1, clients, runs: 6, pause: Duration::from_secs(20), stays: true, ..NEW };
        let standbys = [("SANDBOX_STANDBY__TOTAL_MAX", "1000"), ("SANDBOX_STANDBY__MEMORY_BYTES_MAX", "1099511627776")];
        let Measured { runs_per_s, warm, median, .. } = measure(size(100, 8), load, &standbys).await;
        println!("| {clients} | {runs_per_s:.1} | {:.0} % | {:.2} s |", warm * 100.0, median.as_secs_f64());
    }
}
