//! The scale of a test: short by default, long with `LONG=1`; how long it waits; and parts of tests that need root.

use std::time::{Duration, Instant};

/// How long a state may take to come, on a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_mins(1);

/// The number of rounds, names or levels: `long` with `LONG=1`.
pub(crate) fn rounds(short: u32, long: u32) -> u32 {
    if std::env::var_os("LONG").is_some_and(|value| value == "1") { long } else { short }
}

/// Yields to other tasks until `holds`; fails the test when that takes too long, also where the test's time is paused.
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "it never came to be: {what}");
        tokio::task::yield_now().await;
    }
}

/// Whether the test runs as root. Otherwise prints that a part is skipped, and fails in CI, where tests run as root.
pub(crate) fn as_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("SKIPPED: needs root");
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "this part of a test needs root");
    }
    root
}
