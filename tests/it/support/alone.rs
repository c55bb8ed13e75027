//! Tests that measure their own process.

use std::{env, process::Command};

/// Set for a test that has a process of its own.
const ALONE: &str = "TEST_IS_ALONE";

/// Whether this test has the process to itself, as with cargo-nextest. Where it shares it with other tests, it is run
/// again in one of its own, which has to pass.
pub fn is_alone(test: &str) -> bool {
    if ["NEXTEST", ALONE].iter().any(|name| env::var_os(name).is_some()) {
        return true;
    }
    let mut again = Command::new(env::current_exe().expect("the tests"));
    let output = again.args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().expect("it runs");
    let told = String::from_utf8_lossy(&output.stdout);
    print!("{told}");
    assert!(output.status.success() && told.contains("1 passed"), "{}", String::from_utf8_lossy(&output.stderr));
    false
}
