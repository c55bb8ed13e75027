//! Many programs at once.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use mcp_sandbox_server::nouns::id::SandboxId;

use crate::{
    programs::{LIGHTEST, PROGRAMS},
    server::Server,
    setting,
    ways::Bare,
};

/// Conversations that begin at the same moment.
const BURST: usize = 20;

/// The table's first lines.
pub const HEAD: &str =
    "| Bash hello, runs per second | server, new conversations | engine's API |\n| --- | ---: | ---: |";

/// As fast as so many clients can, one after the other.
pub async fn sustained(warm: &Server, bare: &Bare<'_>, clients: usize) {
    let runner = warm.runner(LIGHTEST);
    let time = Duration::from_secs(setting("BENCH_SECONDS", 10));
    let rate = |counts: Vec<u32>| f64::from(counts.iter().sum::<u32>()) / time.as_secs_f64();
    warm.settle(LIGHTEST, 2).await;
    let ends = Instant::now() + time;
    let served = join_all((0..clients).map(|_| async {
        let mut count = 0;
        while Instant::now() < ends {
            warm.run(&format!("load-{}", SandboxId::new()), LIGHTEST).await;
            count += 1;
        }
        count
    }))
    .await;
    let ends = Instant::now() + time;
    let by_engine = join_all((0..clients).map(|_| async {
        let mut count = 0;
        while Instant::now() < ends {
            bare.run(&runner, LIGHTEST.code).await;
            count += 1;
        }
        count
    }))
    .await;
    println!("| {clients} clients | {:.1} | {:.1} |", rate(served), rate(by_engine));
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
