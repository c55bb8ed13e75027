//! A server under mixed load for a long time: four runs a second, clients that disconnect at random moments, and a
//! hostile program as every tenth run. What the server holds when it is at rest again equals what it held after the
//! first minute.
//!
//! Short, the load lasts 20 s after the first 30; with `LONG=1`, an hour (`SOAK_MINUTES` sets another time).
//! On a busy machine the server may need more at once than it did in the first minute: another connection to the
//! database, with its thread, which stays for minutes, and more memory of the allocator. So where these have grown, the
//! short load is repeated and compared with the one before: their bounds are reached at some time, and a leak has none.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{Instant, interval, timeout},
};

use crate::{
    hostile::corpus::{self, Attack},
    support::{
        calls::{cell, open_session, streams},
        dice::Dice,
        engines::{containers, docker},
        http,
        process::Process,
        scale::{how_many, long},
        server::TOKEN,
    },
};

const RUN_EVERY: Duration = Duration::from_millis(250);
const HOSTILE_EVERY: usize = 10;
const DISCONNECT_EVERY: usize = 7;
const CONVERSATIONS: usize = 20;
/// How long a client waits that is not to disconnect.
const CLIENT_WAITS_MAX: Duration = Duration::from_mins(3);
/// A client that is to disconnect does so within this time.
const DISCONNECT_WITHIN_MS: u64 = 400;
/// How often the load may be repeated until it leaves everything as it was.
const LOADS_MAX: usize = 3;
/// In percent of the first figure.
const TOLERANCE: u64 = 5;
/// The least that an allocator's arenas and one connection differ by from one moment to another.
const SLACK: [(&str, u64); 5] = [(MEMORY, 2048), ("descriptors", 4), ("threads", 2), ("sandboxes", 0), ("folders", 0)];
/// This figure may fall: what is free goes back to the kernel.
const MEMORY: &str = "memory KiB";
/// What pools and an allocator hold.
const POOLED: [&str; 3] = [MEMORY, "descriptors", "threads"];
/// How often the figures are read, and how often in a row they have to be the same: for longer than the refill of
/// standbys after a load and the 10 s after which a thread without work ends.
const READ_EVERY: Duration = Duration::from_secs(2);
const READ_TIMES: usize = 7;
/// How long the server may take until it is at rest.
const QUIET_WITHIN: Duration = Duration::from_mins(10);

/// What the server's memory may grow by while one session executes its cells, in KiB.
const CELLS_SLACK_KIB: u64 = 16 << 10;

const PROGRAMS: [(&str, &str); 4] = [
    ("bash", "echo $RANDOM > note.txt; cat note.txt"),
    ("python", "import json; print(json.dumps(list(range(100))))"),
    ("javascript", "console.log([1, 2, 3].map(x => x * x).join())"),
    ("bash", "seq 20000; exit 3"),
];

#[tokio::test(flavor = "multi_thread")]
async fn load_of_an_hour_leaves_the_server_as_after_the_first_minute() {
    let mut server = Process::start(&[
        ("SANDBOX_LIMITS__WALL_MS", "5000"),
        ("SANDBOX_RUNS__KEPT_MAX", "32"),
        // How much the last runs printed differs from one moment to another.
        ("SANDBOX_RUNS__KEPT_BYTES", "1048576"),
        ("SANDBOX_STANDBY__TOTAL_MAX", "4"),
        ("SANDBOX_STANDBY__IDLE_S", "2"),
    ])
    .await;
    // Connections that this client keeps would be descriptors of the server.
    let client = http::builder().timeout(CLIENT_WAITS_MAX).pool_max_idle_per_host(0);
    server.http = client.build().expect("a client");
    let server = Arc::new(server);
    let attacks: Arc<Vec<Attack>> = Arc::new(corpus::attacks(false));
    let endings = Mutex::new(BTreeMap::new());
    let mut load = Load { server: Arc::clone(&server), attacks, dice: Dice::new(1), count: 0, running: JoinSet::new() };

    load.go_on(Duration::from_secs(if long() { 60 } else { 30 }), &endings).await;
    let mut before = quiet(&server).await;
    let mut found = Vec::new();
    for _ in 0..how_many(LOADS_MAX, 1) {
        load.go_on(duration(), &endings).await;
        let after = quiet(&server).await;
        println!("{} runs: {:?}", load.count, endings.lock().expect("endings"));
        for (name, figure) in &before {
            println!("{name}: {figure} before the load, {} after it", after[name]);
        }
        found = differences(&before, &after);
        if found.is_empty() {
            break;
        }
        before.extend(after.into_iter().filter(|(name, _)| POOLED.contains(name)));
    }
    assert!(found.is_empty(), "{found:?}");
    let endings = endings.into_inner().expect("endings");
    assert!(!endings.contains_key("no answer"), "{endings:?}");
    drop(load);
    Arc::into_inner(server).expect("no request is left").stop().await;
}

/// 10 000 of them with `LONG=1`.
#[tokio::test(flavor = "multi_thread")]
async fn many_cells_of_a_session_leave_the_servers_memory_as_it_was() {
    let server = Process::start(&[("SANDBOX_RUNS__KEPT_MAX", "32"), ("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await;
    let session = open_session(&server, TOKEN, json!({"language": "python"})).await;
    let memory_after = async |cells: usize| {
        for number in 0..cells {
            let result = cell(&server, TOKEN, &session, &format!("x = {number}\nx")).await;
            assert_eq!(streams(&result).0, format!("{number}\n"));
        }
        server.proc_status()("VmRSS")
    };
    // What is kept and cached is full after the first ones.
    let before = memory_after(200).await;
    let after = memory_after(how_many(300, 10_000)).await;
    println!("{before} KiB, and then {after} KiB");
    assert!(after <= before + CELLS_SLACK_KIB, "{before} KiB, and then {after} KiB");
    server.stop().await;
}

fn duration() -> Duration {
    let minutes = std::env::var("SOAK_MINUTES").ok().and_then(|text| text.parse().ok());
    minutes.map_or(Duration::from_secs(if long() { 3600 } else { 20 }), Duration::from_mins)
}

struct Load {
    server: Arc<Process>,
    attacks: Arc<Vec<Attack>>,
    dice: Dice,
    count: usize,
    running: JoinSet<String>,
}

impl Load {
    /// Starts runs at the fixed rate for so long, then waits for those that still run. A small one is the last, since
    /// the newest is kept whatever its size.
    async fn go_on(&mut self, duration: Duration, endings: &Mutex<BTreeMap<String, usize>>) {
        let over = Instant::now() + duration;
        let mut ticks = interval(RUN_EVERY);
        while Instant::now() < over {
            ticks.tick().await;
            self.begin_one();
            while let Some(ended) = self.running.try_join_next() {
                count(endings, ended.expect("a client"));
            }
        }
        while let Some(ended) = self.running.join_next().await {
            count(endings, ended.expect("a client"));
        }
        let small = json!({"conversationId": "soak-1", "language": "bash", "code": "true"});
        let request = self.server.http.post(self.server.url("/v1/runs")).bearer_auth(TOKEN).json(&small);
        drop(request.send().await.expect("an answer"));
    }

    fn begin_one(&mut self) {
        self.count += 1;
        let number = self.count;
        let (server, attacks) = (Arc::clone(&self.server), Arc::clone(&self.attacks));
        let disconnects = number.is_multiple_of(DISCONNECT_EVERY);
        let patience =
            if disconnects { Duration::from_millis(self.dice.below(DISCONNECT_WITHIN_MS)) } else { Duration::MAX };
        let chosen = self.dice.below(attacks.len() as u64);
        self.running.spawn(async move {
            let is_hostile = number.is_multiple_of(HOSTILE_EVERY);
            let conversation =
                if is_hostile { format!("hostile-{number}") } else { format!("soak-{}", number % CONVERSATIONS) };
            let body = if is_hostile {
                let attack = &attacks[usize::try_from(chosen).expect("an index")];
                json!({"conversationId": conversation, "language": attack.language, "code": attack.program})
            } else {
                let (language, code) = PROGRAMS[number % PROGRAMS.len()];
                json!({"conversationId": conversation, "language": language, "code": code})
            };
            let request = server.http.post(server.url("/v1/runs")).bearer_auth(TOKEN).json(&body).send();
            let ended = match timeout(patience, request).await {
                Err(_) => "disconnected".to_owned(),
                Ok(answer) => answer.map_or_else(|_| "no answer".to_owned(), |answer| answer.status().to_string()),
            };
            if is_hostile {
                // What it left would fill the disk. A conversation whose program still ends is not deleted yet.
                let url = server.url(&format!("/v1/conversations/{conversation}"));
                delete(&server, &url).await;
            }
            ended
        });
    }
}

/// Tries until there is no such conversation, for a minute.
async fn delete(server: &Process, url: &str) {
    for _ in 0..60 {
        let answer = server.http.delete(url).bearer_auth(TOKEN).send().await;
        if answer.is_ok_and(|answer| answer.status().is_success() || answer.status() == 404) {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

fn count(endings: &Mutex<BTreeMap<String, usize>>, ended: String) {
    *endings.lock().expect("endings").entry(ended).or_insert(0) += 1;
}

/// The server's figures once it is at rest: none has fallen for a while, as those of threads and sandboxes do that are
/// no longer needed, or risen by more than a step of the background adds for a moment.
async fn quiet(server: &Process) -> BTreeMap<&'static str, u64> {
    let (over, mut least, mut same) = (Instant::now() + QUIET_WITHIN, figures(server).await, 0);
    while same < READ_TIMES {
        tokio::time::sleep(READ_EVERY).await;
        let now = figures(server).await;
        assert!(Instant::now() < over, "the server does not come to rest: {least:?}, then {now:?}");
        let has_fallen = least.iter().any(|(name, figure)| *name != MEMORY && now[name] < *figure);
        if has_fallen || !differences(&least, &now).is_empty() {
            (same, least) = (0, now);
        } else {
            same += 1;
            least.insert(MEMORY, least[MEMORY].min(now[MEMORY]));
        }
    }
    least
}

async fn figures(server: &Process) -> BTreeMap<&'static str, u64> {
    let sandboxes = containers(&docker().await, &server.instance()).await;
    let status = server.proc_status();
    [
        (MEMORY, status("VmRSS")),
        ("descriptors", entries(&server.proc_folder().join("fd"))),
        ("threads", status("Threads")),
        ("sandboxes", sandboxes as u64),
        ("folders", entries(&server.root())),
    ]
    .into()
}

fn entries(folder: &Path) -> u64 {
    fs::read_dir(folder).expect("a folder").count() as u64
}

/// Figures that differ from those of before by more than the tolerance. What is lost is wrong too.
fn differences(first: &BTreeMap<&'static str, u64>, last: &BTreeMap<&'static str, u64>) -> Vec<String> {
    let differs = |(name, slack): &(&str, u64)| {
        let (before, after) = (first[name], last[name]);
        let allowed = (before * TOLERANCE / 100).max(*slack);
        let is_other = if *name == MEMORY { after > before + allowed } else { after.abs_diff(before) > allowed };
        is_other.then(|| format!("{name}: {before} before the load, {after} after it"))
    };
    SLACK.iter().filter_map(differs).collect()
}
