//! Programs at the pace of their users: one conversation in a tight loop, conversations that begin at a rate, and calls
//! of a chat, far apart. Each pace is held with standbys and without, by turns.

use std::{process::Command, time::Duration};

use futures_util::future::join_all;
use mcp_sandbox_server::domain::id::SandboxId;
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    median,
    programs::{PROGRAMS, Program},
    server::Server,
    setting,
    ways::{self, Bare},
};

const PANDAS: &Program = &PROGRAMS[1];
const HELLO: &Program = &PROGRAMS[0];

/// How often a tight loop is measured, its calls, and the rest between an answer and the next call.
pub const LOOPS: u64 = 4;
const LOOP_CALLS: usize = 10;
const LOOP_REST: Duration = Duration::from_millis(200);
/// Conversations that begin in a second, and how long.
const RATE: u32 = 4;
pub const RATE_SECONDS: u64 = 30;
/// How often a call of each kind is made in a chat.
pub const CHATS: u64 = 5;
/// How far apart the calls of one kind are in a chat.
const CHAT_REST: Duration = Duration::from_secs(20);

/// The table's first lines.
pub const HEAD: &str = "| Python pandas | with standbys: median ms | slowest tenth from | slowest | no standby: median \
                        | slowest tenth from | slowest |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |";

fn row(name: &str, times: [Vec<Duration>; 2]) {
    let cells = times.map(|mut times| {
        let median = median(&mut times);
        let ms = |at: usize| times[at].as_secs_f64() * 1000.0;
        format!("{median:.1} | {:.1} | {:.1}", ms(times.len() * 9 / 10), ms(times.len() - 1))
    });
    println!("| {name} | {} |", cells.join(" | "));
}

/// Calls of one conversation that follow each other closely.
pub async fn tight_loop(warm: &Server, cold: &Server) {
    let mut times: [Vec<Duration>; 2] = Default::default();
    for _ in 0..setting("BENCH_LOOPS", LOOPS) {
        for (server, times) in [warm, cold].into_iter().zip(&mut times) {
            warm.run("before-the-loop", PANDAS).await;
            warm.settle(PANDAS, 3).await;
            let conversation = format!("loop-{}", SandboxId::new());
            for _ in 0..LOOP_CALLS {
                times.push(server.run(&conversation, PANDAS).await);
                sleep(LOOP_REST).await;
            }
        }
    }
    row(&format!("{LOOP_CALLS} calls of one conversation, {} ms apart", LOOP_REST.as_millis()), times);
}

/// Conversations that begin at a rate, whether those before them were answered or not.
pub async fn rate(warm: &Server, cold: &Server) {
    let mut times: [Vec<Duration>; 2] = Default::default();
    let seconds = u32::try_from(setting("BENCH_RATE", RATE_SECONDS)).expect("not so long");
    for (server, times) in [warm, cold].into_iter().zip(&mut times) {
        warm.run("before-the-rate", PANDAS).await;
        warm.settle(PANDAS, 3).await;
        let begins = Instant::now();
        let runs = (0..RATE * seconds).map(async |number| {
            sleep_until(begins + Duration::from_secs(1) / RATE * number).await;
            server.run(&format!("rate-{}", SandboxId::new()), PANDAS).await
        });
        times.extend(join_all(runs).await);
    }
    row(&format!("{RATE} new conversations a second, for {seconds} s"), times);
}

/// The table's first lines.
pub const CHAT_HEAD: &str = "| a call after 20 s of rest, over a new connection, median ms (share of `docker run`) \
                             | new conversation | known conversation | `docker run` | on the host |\n| --- | ---: \
                             | ---: | ---: | ---: |";

/// Calls of a chat: caches are cold, and so is the connection.
pub async fn chat(warm: &Server, bare: &Bare<'_>) {
    let runner = warm.runner(HELLO);
    let (interpreter, known) = (ways::host_interpreter("python3"), format!("chat-{}", SandboxId::new()));
    let mut times: [Vec<Duration>; 4] = Default::default();
    for _ in 0..2 {
        warm.run(&known, HELLO).await;
    }
    let rest = CHAT_REST / u32::try_from(times.len()).expect("a few");
    for _ in 0..setting("BENCH_CHATS", CHATS) {
        sleep(rest).await;
        times[0].push(warm.reconnected().run(&format!("chat-{}", SandboxId::new()), HELLO).await);
        sleep(rest).await;
        times[1].push(warm.reconnected().run(&known, HELLO).await);
        sleep(rest).await;
        times[2].push(ways::command(&mut ways::docker_run(bare.config, &runner, bare.data), HELLO.code));
        sleep(rest).await;
        times[3].push(ways::command(Command::new(&interpreter).arg("-"), HELLO.code));
    }
    let medians = times.map(|mut times| median(&mut times));
    let cells = medians.map(|ms| format!("{ms:.1} (1/{:.1})", medians[2] / ms));
    println!("| Python hello | {} |", cells.join(" | "));
}
