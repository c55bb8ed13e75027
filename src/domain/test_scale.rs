//! The scale of a test: short by default, long with `LONG=1`; and parts of tests that need root.

/// The number of rounds, names or levels: `long` with `LONG=1`.
pub(crate) fn rounds(short: u32, long: u32) -> u32 {
    if std::env::var_os("LONG").is_some() { long } else { short }
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
