//! How much a test does: its short form always, its long form with `LONG=1`; and what it takes root for.

/// Rounds, names, levels: the second number when the long form is asked for.
pub(crate) fn rounds(short: u32, long: u32) -> u32 {
    if std::env::var_os("LONG").is_some() { long } else { short }
}

/// Whether a test may do what only root can. Says so where it may not, and fails in CI, which runs the tests as root.
pub(crate) fn as_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("SKIPPED: needs root");
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "this part of a test needs root");
    }
    root
}
