//! The program as process 1 starts it, without a kernel.

use std::process::{Child, Command, Stdio};

#[test]
fn session_that_fails_says_so_and_the_program_ends_with_a_failure() {
    let mut bridge = Command::new(env!("CARGO_BIN_EXE_sandbox-bridge"));
    bridge.arg("no-such-kernel").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended = bridge.spawn().and_then(Child::wait_with_output).expect("the bridge");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(said.contains(r#"{"msg_type":"failed"}"#), "{said}");
    assert_eq!(ended.status.code(), Some(1), "{}", String::from_utf8_lossy(&ended.stderr));
}
