//! Warm children: started before the program is known. The interpreter is replaced by a Bash script that uses the
//! control socket.

use serde_json::json;

use crate::client::{Init, frame, request};

/// Reports that it is up and warm, waits for the handover, prints it, and becomes the program.
const INTERPRETER: &str = r#"
printf u >&"$SANDBOX_CONTROL_FD"; printf w >&"$SANDBOX_CONTROL_FD"
length=$(head -c 4 <&"$SANDBOX_CONTROL_FD" | od -An -tu1 | awk '{print $3 * 256 + $4}')
head -c "$length" <&"$SANDBOX_CONTROL_FD" | tr '\0' ','
[ "$(cat <&"$SANDBOX_CONTROL_FD" | wc -c)" = 0 ] && echo :
exec bash "$1"
"#;

fn warm(script: &str) -> Init {
    Init::start(&["--warm"], &["bash", "-c", script, "bash"])
}

#[test]
fn warm_child_receives_the_request_and_becomes_the_program() {
    let mut init = warm(INTERPRETER);
    assert_eq!(init.next(), Some((0x81, br#"{"protocol":1}"#.to_vec())));
    let (kind, payload) = init.next().expect("a second READY");
    let second: serde_json::Value = serde_json::from_slice(&payload).expect("JSON");
    assert_eq!((kind, &second["protocol"], &second["warm"]), (0x81, &json!(1), &json!(true)));
    init.send(&request(r#"{"args":["x"],"env":{"K":"v"}}"#, "exit 5"));
    let reply = init.reply();
    assert_eq!(String::from_utf8_lossy(&reply.stdout), "null,1,x,K=v,:\n");
    assert_eq!(reply.exit.expect("an EXIT")["status"], json!(5));
}

#[test]
fn request_is_accepted_before_the_warm_child_is_up() {
    let mut init = warm(&format!("sleep 0.3; {INTERPRETER}"));
    init.send(&request("{}", "exit 6"));
    let reply = init.reply();
    assert_eq!((reply.ready.len(), reply.exit.expect("an EXIT")["status"].clone()), (0, json!(6)));
}

#[test]
fn dead_warm_child_is_replaced_by_a_cold_start() {
    let mut init = warm("[ \"$SANDBOX_CONTROL_FD\" ] && exit 1; exec bash \"$1\"");
    assert_eq!(init.next().map(|(kind, _)| kind), Some(0x81));
    init.send(&request("{}", "echo cold; exit 7"));
    let reply = init.reply();
    assert_eq!((&reply.stdout[..], &reply.exit.expect("an EXIT")["status"]), (&b"cold\n"[..], &json!(7)));
}

#[test]
fn warm_child_becomes_the_kernel_of_a_session() {
    let folder = tempfile::tempdir().expect("a folder");
    let kernel = folder.path().join("kernel");
    std::fs::write(&kernel, "cat; exit 8").expect("written");
    let flags = ["--warm", "--kernel-program", kernel.to_str().expect("text")];
    let mut init = Init::start(&flags, &["bash", "-c", INTERPRETER, "bash"]);
    init.send(&[frame(1, br#"{"kernel":"k"}"#), frame(3, b""), frame(4, b"cells"), frame(5, b"")].concat());
    let reply = init.reply();
    assert_eq!(String::from_utf8_lossy(&reply.stdout), "pipe,0,:\ncells");
    assert_eq!(reply.exit.expect("an EXIT")["status"], json!(8));
}

#[test]
fn session_without_a_kernel_program_needs_the_bridge() {
    let mut init = warm(INTERPRETER);
    init.send(&[frame(1, br#"{"kernel":"k"}"#), frame(3, b"")].concat());
    assert!(init.reply().error.is_some(), "this machine has no /sandbox-bridge");
}

#[test]
fn unused_warm_child_ends_with_init() {
    let mut init = warm("trap '' HUP TERM; setsid sleep 1000 & printf u >&\"$SANDBOX_CONTROL_FD\"; sleep 1000");
    assert_eq!(init.next().map(|(kind, _)| kind), Some(0x81));
    drop(init.input.take());
    assert_eq!(init.status(), 0);
}

#[test]
fn deadline_kills_a_warm_child_that_never_starts_the_program() {
    let mut init = warm("printf u >&\"$SANDBOX_CONTROL_FD\"; sleep 1000");
    init.send(&request(r#"{"wallMs":150,"graceMs":0}"#, "true"));
    assert_eq!(init.reply().exit.expect("an EXIT")["killedBy"], json!("deadline"));
}

/// Starts a warm child that loads slowly, with a spare that identifies itself.
const LOADS: &str = r#"
if [ -z "$SANDBOX_SPARE" ]; then until [ -e "$0" ]; do sleep 0.01; done; fi
export WHO=${SANDBOX_SPARE:+spare}
"#;

fn with_spare(gate: &std::path::Path, interpreter: &str) -> Init {
    let gate = gate.to_str().expect("text");
    Init::start(&["--warm", "--spare"], &["bash", "-c", &format!("{LOADS}{REPORTS}{interpreter}"), gate])
}

/// Only the loading child reports `w` at the end; a spare reports only `u` and waits without a child, as an interpreter
/// does: what is not the spare itself is killed with the loading child.
const REPORTS: &str = r#"
if [ "$WHO" ]; then
  printf u >&"$SANDBOX_CONTROL_FD"
  while read -r -N 1 -u "$SANDBOX_CONTROL_FD"; do :; done
  exec bash "$1"
fi
"#;

#[test]
fn program_runs_on_the_spare_while_the_warm_child_loads() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut init = with_spare(&folder.path().join("loaded"), INTERPRETER);
    assert_eq!(init.next(), Some((0x81, br#"{"protocol":1}"#.to_vec())));
    init.send(&request("{}", "echo \"by the ${WHO:-loaded} one\""));
    assert_eq!(String::from_utf8_lossy(&init.reply().stdout), "by the spare one\n");
}

#[test]
fn loaded_child_replaces_the_spare() {
    let folder = tempfile::tempdir().expect("a folder");
    let gate = folder.path().join("loaded");
    let mut init = with_spare(&gate, INTERPRETER);
    assert_eq!(init.next(), Some((0x81, br#"{"protocol":1}"#.to_vec())));
    std::fs::write(&gate, "").expect("the gate");
    let (_, payload) = init.next().expect("a second READY");
    assert!(String::from_utf8_lossy(&payload).contains(r#""warm":true"#));
    init.send(&request("{}", "echo \"by the ${WHO:-loaded} one\""));
    assert!(String::from_utf8_lossy(&init.reply().stdout).ends_with("by the loaded one\n"));
}

#[test]
fn child_that_is_warm_twice_in_one_read_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let gate = folder.path().join("loaded");
    std::fs::write(&gate, "").expect("the gate");
    let mut init = with_spare(&gate, &INTERPRETER.replacen("printf w", "printf ww", 1));
    assert_eq!(init.next(), Some((0x81, br#"{"protocol":1}"#.to_vec())));
    for _ in 0..2 {
        let (_, payload) = init.next().expect("a further READY");
        assert!(String::from_utf8_lossy(&payload).contains(r#""warm":true"#));
    }
    init.send(&request("{}", "echo \"by the ${WHO:-loaded} one\""));
    assert_eq!(String::from_utf8_lossy(&init.reply().stdout), "null,0,:\nby the loaded one\n", "it was handed over");
}

#[test]
fn unannounced_keeper_of_a_child_that_loads_ends_before_the_program() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("keeper");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("a pipe").success());
    // A child of process 1, as a keeper is.
    let mut init = with_spare(&pipe, r#"keeper=$(sleep 1000 >&- & echo $!); echo "$keeper" >"$0"; sleep 1000"#);
    assert_eq!(init.next(), Some((0x81, br#"{"protocol":1}"#.to_vec())));
    let keeper = std::fs::read_to_string(&pipe).expect("its number");
    let program = format!("while kill -0 {} 2>/dev/null; do sleep 0.01; done; echo gone", keeper.trim());
    init.send(&request(r#"{"wallMs":10000}"#, &program));
    assert_eq!(String::from_utf8_lossy(&init.reply().stdout), "gone\n");
}

#[test]
fn keeper_and_descendants_end_with_the_program() {
    // `k` and, in four bytes, the id of a process that ignores every signal it can ignore.
    let keeper = r#"(trap '' HUP TERM INT; exec sleep 1000) & keeper=$!
        printf "k\\x$(printf %02x $((keeper >> 24)))\\x$(printf %02x $((keeper >> 16 & 255)))" >&"$SANDBOX_CONTROL_FD"
        printf "\\x$(printf %02x $((keeper >> 8 & 255)))\\x$(printf %02x $((keeper & 255)))" >&"$SANDBOX_CONTROL_FD"
    "#;
    let mut init = warm(&format!("{keeper}{INTERPRETER}"));
    init.send(&request("{}", "setsid sleep 1000 & exit 3"));
    assert_eq!(init.reply().exit.expect("an EXIT")["status"], json!(3));
}

#[test]
fn init_handles_no_signal_while_it_waits_runs_and_ends() {
    // A signal with a handler reaches process 1 from inside its container, one with the default disposition does not.
    let sigchld_alone_is_blocked = |init: &Init| assert_eq!(init.signal_masks(), (0, 1 << (17 - 1)));
    let mut init = warm(INTERPRETER);
    assert_eq!([init.next(), init.next()].map(|frame| frame.map(|(kind, _)| kind)), [Some(0x81); 2]);
    sigchld_alone_is_blocked(&init);
    init.send(&[frame(1, b"{}"), frame(2, b"echo ready; read -r line"), frame(3, b"")].concat());
    init.until("ready");
    sigchld_alone_is_blocked(&init);
    init.send(&frame(5, b""));
    init.reply();

    // This one waits at its end until its input is closed.
    let mut init = Init::with(&["SANDBOX_ATTACHED_LATER=1"], &[], &["bash"]);
    init.send(&request("{}", "exit 0"));
    while init.next().expect("more frames").0 != 0x84 {}
    sigchld_alone_is_blocked(&init);
}
