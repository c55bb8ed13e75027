//! Many lines over HTTP: every page is reached by an index, the memory of the server stays, and the times are printed.
//! With `LONG=1` a million.

use std::{
    fs,
    time::{Duration, Instant},
};

use mcp_sandbox_server::{adapters::database::Database, ports::history::HistoryStore as _};

use super::get;
use crate::{
    history::random_lines,
    support::{
        FakeServer,
        alone::is_alone,
        dice::Dice,
        postgres::Postgres,
        scale::{how_many, long},
    },
};

/// Pages that are followed from each query.
const PAGES: usize = 40;
/// What all pages together may add to the memory of the process, whatever the number of lines, in bytes.
const GROWTH_BYTES_MAX: usize = 96 << 20;
/// What `PostgreSQL` tells its log of each statement, for the connections of the server.
const EXPLAIN: [&str; 2] = ["session_preload_libraries=auto_explain", "auto_explain.log_min_duration=0"];
/// A table of the short form is read as fast without an index: only where there is none that serves are these used.
const UNWANTED: [&str; 2] = ["enable_seqscan=off", "enable_sort=off"];

/// The memory of this process, which is the server too, in bytes.
fn memory() -> usize {
    let pages = fs::read_to_string("/proc/self/statm").expect("statm");
    pages.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a number") * 4096
}

/// `url` is of the one that fills the database, `server_url` of the server that reads it.
async fn are_paged(url: &str, server_url: &str) {
    let count = how_many(2000, 1_000_000);
    let database = Database::connect(url).expect("an address");
    database.prepare().await.expect("tables");
    let mut dice = Dice::new(6);
    for _ in 0..count / 1000 {
        database.write(&random_lines(1000, &mut dice)).await.expect("stored");
    }
    database.close().await;
    let folder = tempfile::tempdir().expect("a folder");
    let settings = [
        ("DATABASE_URL", server_url),
        ("SANDBOX_HISTORY__KEPT_S", "0"),
        ("SANDBOX_HISTORY__KEPT_MAX", "10000000"),
        ("SANDBOX_HISTORY__KEPT_BYTES", "1099511627776"),
    ];
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
    assert!(most.saturating_sub(before) < GROWTH_BYTES_MAX, "{} MiB more", mib(most - before));
    server.stop().await;
}

fn tell(name: &str, times: &mut [Duration]) {
    times.sort();
    let most = times.last().expect("one");
    println!("{name}: median {:?}, at most {most:?}, {} pages", times[times.len() / 2], times.len());
}

/// Asserts of each page that was read that an index gave its lines in their order.
fn are_found_by_an_index(log: &str) {
    let plans = log.split("Query Text: ").skip(1).filter(|text| text.starts_with("SELECT * FROM history"));
    // What follows is indented; the next message begins with its time.
    let plans = plans.map(|text| text.lines().take_while(|line| !line.starts_with('2')).collect::<Vec<_>>().join("\n"));
    let plans: Vec<_> = plans.filter(|plan| plan.contains("ORDER BY begun_ms DESC")).collect();
    assert!(plans.len() > 100, "{} pages were explained", plans.len());
    for plan in plans {
        let is_found = plan.contains("Index Scan") && !plan.contains("Seq Scan") && !plan.contains("Sort");
        assert!(is_found, "{plan}");
    }
}

/// How it finds them is a unit test of the statement.
#[tokio::test(flavor = "multi_thread")]
async fn many_lines_are_paged_on_sqlite() {
    if !is_alone("history_api::many::many_lines_are_paged_on_sqlite") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite://{}/state.db", folder.path().display());
    are_paged(&url, &url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_lines_are_paged_on_postgres() {
    if !is_alone("history_api::many::many_lines_are_paged_on_postgres") {
        return;
    }
    let cluster = Postgres::start().await;
    let unwanted = if long() { &[][..] } else { &UNWANTED };
    let options: Vec<_> = EXPLAIN.iter().chain(unwanted).map(|option| format!("-c%20{option}")).collect();
    let url = format!("{}&options={}", cluster.url(), options.join("%20"));
    are_paged(&cluster.url(), &url).await;
    are_found_by_an_index(&cluster.log());
}
