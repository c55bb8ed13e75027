//! What one program costs here, and what it costs by the ways a user would take instead.
//!
//! `cargo bench` prints medians in milliseconds and ratios to `docker run`, programs per second, a burst, and the
//! memory of standbys. All cases of a program are interleaved in one run, so that other load affects all alike. The
//! runner images must be there (`./build.sh`).
//!
//! | variable | default | |
//! | --- | ---: | --- |
//! | `BENCH_ROUNDS` | 30 | how often each case of a program is measured |
//! | `BENCH_PROGRAMS` | all | a part of the names of those that are measured one at a time |
//! | `BENCH_SESSIONS` | 1 | whether sessions are measured; their opponents are installed below `target/` at first |
//! | `BENCH_LOOPS` | 4 | how often a conversation in a tight loop is measured; 0 leaves it out |
//! | `BENCH_RATE` | 30 | how many seconds new conversations begin at a rate; 0 leaves them out |
//! | `BENCH_CHATS` | 5 | how often a call of each kind is made 20 s apart; 0 leaves them out |
//! | `BENCH_SECONDS` | 10 | how long each of the three turns of a throughput case lasts; 0 leaves them out |
//! | `BENCH_STANDBYS` | 10,50,100 | how many stand by while their memory and the latency are measured |

mod growth;
mod latency;
mod pace;
mod programs;
mod server;
mod session;
mod throughput;
mod ways;

use std::time::Duration;

use mcp_sandbox_server::app;

use self::{programs::PROGRAMS, server::Server};

fn median(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1000.0
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// What the numbers were measured on.
fn machine() -> String {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{}, Linux {}", cpu.map_or("unknown processor", |(_, name)| name), kernel.trim())
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
    println!("{}, API {}, {}, {} cores, {}\n", probe.engine, probe.api_version, probe.runtime, probe.cpus, machine());
    let bare = ways::Bare { engine: engine.as_ref(), config: &bare_config, data: &data };

    println!("{}", latency::HEAD);
    let wanted = std::env::var("BENCH_PROGRAMS").unwrap_or_default();
    for program in PROGRAMS.iter().filter(|program| program.name.contains(&wanted)) {
        latency::table(&warm, &cold, &bare, program).await;
    }
    if setting("BENCH_SESSIONS", 1) > 0 {
        println!("\n{}", session::HEAD);
        session::table(&warm).await;
    }
    println!("\n{}", pace::HEAD);
    if setting("BENCH_LOOPS", pace::LOOPS) > 0 {
        pace::tight_loop(&warm, &cold).await;
    }
    if setting("BENCH_RATE", pace::RATE_SECONDS) > 0 {
        pace::rate(&warm, &cold).await;
    }
    if setting("BENCH_CHATS", pace::CHATS) > 0 {
        println!("\n{}", pace::CHAT_HEAD);
        pace::chat(&warm, &bare).await;
    }
    if setting("BENCH_SECONDS", throughput::SECONDS) > 0 {
        println!("\n{}", throughput::HEAD);
        for clients in [1, 4, 16] {
            throughput::sustained(&warm, &bare, clients).await;
        }
        throughput::burst(&warm, &cold).await;
    }
    warm.stop().await;
    cold.stop().await;

    println!("\n{}", growth::HEAD);
    let counts = std::env::var("BENCH_STANDBYS").unwrap_or_else(|_| "10,50,100".to_owned());
    for count in counts.split(',').filter_map(|count| count.trim().parse().ok()) {
        growth::standing_by(&folder.path().join(format!("growth-{count}")), count).await;
    }
}
