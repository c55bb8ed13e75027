//! Many programs at once.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use mcp_sandbox_server::domain::id::SandboxId;

use crate::{
    programs::{LIGHTEST, PROGRAMS},
    server::Server,
    setting,
    ways::Bare,
};

/// Conversations that begin at the same moment.
const BURST: usize = 20;

/// How often server and engine take turns.
const TURNS: u32 = 3;

/// How long a turn lasts by default, in seconds.
pub const SECONDS: u64 = 10;

/// The table's first lines.
pub const HEAD: &str =
    "| Bash hello, runs per second | server, new conversations | engine's API | ratio |\n| --- | ---: | ---: | ---: |";

/// As fast as so many clients can, one after the other; server and engine take turns.
pub async fn sustained(warm: &Server, bare: &Bare<'_>, clients: usize) {
    let runner = warm.runner(LIGHTEST);
    let time = Duration::from_secs(setting("BENCH_SECONDS", SECONDS));
    let mut counts = [0, 0];
    warm.run("before-the-load", LIGHTEST).await;
    for _ in 0..TURNS {
        warm.settle(LIGHTEST, 2).await;
        counts[0] += many(clients, time, async || {
            warm.run(&format!("load-{}", SandboxId::new()), LIGHTEST).await;
        })
        .await;
        // What the server owes for its last runs is not paid in the engine's time.
        warm.settle(LIGHTEST, 2).await;
        counts[1] += many(clients, time, async || {
            bare.run(&runner, LIGHTEST.code).await;
        })
        .await;
    }
    let [served, by_engine] = counts.map(|count| f64::from(count) / (TURNS * time).as_secs_f64());
    println!("| {clients} clients | {served:.1} | {by_engine:.1} | {:.2} |", served / by_engine);
}

/// How often so many clients did something in this time.
async fn many(clients: usize, time: Duration, once: impl AsyncFn()) -> u32 {
    let ends = Instant::now() + time;
    let counts = join_all((0..clients).map(|_| async {
        let mut count = 0;
        while Instant::now() < ends {
            once().await;
            count += 1;
        }
        count
    }));
    counts.await.iter().sum()
}

/// Many new conversations in the same moment, with standbys and without.
pub async fn burst(warm: &Server, cold: &Server) {
    let program = &PROGRAMS[0];
    warm.run("before-the-burst", program).await;
    warm.settle(program, 3).await;
    println!("\n| {BURST} new conversations at once, Python hello | first ms | tenth ms | last ms |");
    println!("| --- | ---: | ---: | ---: |");
    for (name, server) in [("with standbys", warm), ("without", cold)] {
        let mut times =
            join_all((0..BURST).map(async |_| server.run(&format!("burst-{}", SandboxId::new()), program).await)).await;
        times.sort_unstable();
        let ms = |at: usize| times[at].as_secs_f64() * 1000.0;
        println!("| {name} | {:.1} | {:.1} | {:.1} |", ms(0), ms(BURST / 2 - 1), ms(BURST - 1));
    }
}
