//! Many lines over HTTP: every page is reached, and the times and the memory are printed. With `LONG=1` a million.

use std::{
    fs,
    time::{Duration, Instant},
};

use mcp_sandbox_server::{adapters::database::Database, ports::history::HistoryStore as _};

use super::get;
use crate::{
    history::random_lines,
    support::{FakeServer, dice::Dice, postgres::Postgres, scale::how_many},
};

/// Pages that are followed from each query.
const PAGES: usize = 40;

/// The memory of this process, which is the server too, in bytes.
fn memory() -> usize {
    let pages = fs::read_to_string("/proc/self/statm").expect("statm");
    pages.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a number") * 4096
}

async fn are_paged(url: &str) {
    let count = how_many(2000, 1_000_000);
    let database = Database::connect(url).expect("an address");
    database.prepare().await.expect("tables");
    let mut dice = Dice::new(6);
    for _ in 0..count / 1000 {
        database.write(&random_lines(1000, &mut dice)).await.expect("stored");
    }
    database.close().await;
    let folder = tempfile::tempdir().expect("a folder");
    let settings = [("DATABASE_URL", url), ("SANDBOX_HISTORY__KEPT_S", "0"), ("SANDBOX_HISTORY__KEPT_MAX", "10000000")];
    let server = FakeServer::again(&folder.path().join("root"), &settings).await;
    assert_eq!(get(&server, "/v1/history").await.0, 200, "the database is ready");
    let before = memory();
    let mut most = before;
    for (name, query) in [
        ("all", "limit=50"),
        ("all, 200 a page", "limit=200"),
        ("of an owner", "owner=ann"),
        ("of an unknown owner", "owner=eve"),
        ("of a conversation of an owner", "owner=ann&conversation=d"),
        ("of a language", "language=bash"),
        ("that failed", "ended=failed"),
        ("of an end that none has", "ended=out_of_memory"),
        ("of an owner and an end that none has", "owner=ann&ended=out_of_memory"),
        ("of a language and an end", "language=bash&ended=timed_out&owner=bob"),
        ("of a day", "from=2026-11-23T00:00:00Z&to=2026-11-24T00:00:00Z"),
        ("of an unknown conversation of an owner", "owner=ann&conversation=none"),
        ("of an unknown owner and a common language", "owner=eve&language=bash"),
        ("of an unknown owner and a common end", "owner=eve&ended=exited"),
        ("of an unknown owner and a common conversation", "owner=eve&conversation=c"),
        ("of an owner and a language that none has", "owner=ann&language=ruby"),
    ] {
        let (mut path, mut times, mut lines) = (format!("/v1/history?{query}"), Vec::new(), 0);
        for _ in 0..PAGES {
            let begun = Instant::now();
            let (status, page) = get(&server, &path).await;
            times.push(begun.elapsed());
            assert_eq!(status, 200, "{page}");
            lines += page["runs"].as_array().expect("a list").len();
            most = most.max(memory());
            let Some(cursor) = page["cursor"].as_str() else { break };
            path = format!("/v1/history?{query}&cursor={cursor}");
        }
        tell(name, &mut times);
        assert!(
            lines > 0
                || query.contains("eve")
                || query.contains("out_of_memory")
                || query.contains("none")
                || query.contains("ruby")
        );
    }
    for query in ["", "?owner=ann", "?from=2026-11-23&to=2026-11-24"] {
        let begun = Instant::now();
        let (status, sums) = get(&server, &format!("/v1/usage{query}")).await;
        tell(&format!("usage{query}"), &mut [begun.elapsed()]);
        assert!(status == 200 && !sums["usage"].as_array().expect("a list").is_empty(), "{sums}");
    }
    let mib = |bytes: usize| bytes >> 20;
    println!("memory: {} MiB before, {} MiB at most, {} MiB after", mib(before), mib(most), mib(memory()));
    server.stop().await;
}

fn tell(name: &str, times: &mut [Duration]) {
    times.sort();
    let most = times.last().expect("one");
    println!("{name}: median {:?}, at most {most:?}, {} pages", times[times.len() / 2], times.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_lines_are_paged_on_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    are_paged(&format!("sqlite://{}/state.db", folder.path().display())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_lines_are_paged_on_postgres() {
    are_paged(&Postgres::start().await.url()).await;
}
