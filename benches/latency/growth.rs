//! What many standbys cost: the machine's memory, and the latency of a program among them.

use std::{fs, path::Path, time::Duration};

use mcp_sandbox_server::domain::id::SandboxId;

use crate::{median, programs::PROGRAMS, server::Server};

const ROUNDS: usize = 10;

/// The table's first lines.
pub const HEAD: &str = "| Python standbys | memory of one, MiB | new conversation, median ms |\n| ---: | ---: | ---: |";

/// One line of it: a server of its own with so many standbys.
pub async fn standing_by(root: &Path, count: usize) {
    let program = &PROGRAMS[0];
    let wanted = count.to_string();
    let server = Server::start(
        root.to_owned(),
        &[
            ("SANDBOX_STANDBY__TOTAL_MAX", &wanted),
            ("SANDBOX_STANDBY__NAMELESS_MAX", &wanted),
            ("SANDBOX_STANDBY__MEMORY_BYTES_MAX", "1099511627776"),
        ],
    )
    .await;
    let before = available_bytes();
    server.run("the-first", program).await;
    server.settle(program, count).await;
    let each = before.saturating_sub(available_bytes()) / u64::try_from(count).unwrap_or(1).max(1);
    let mut times: Vec<Duration> = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        times.push(server.run(&format!("one-of-many-{}", SandboxId::new()), program).await);
        server.settle(program, count).await;
    }
    println!("| {count} | {} | {:.1} |", each >> 20, median(&mut times));
    server.stop().await;
}

/// What the kernel says could be used without swapping (proc(5), `MemAvailable`).
fn available_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
}
