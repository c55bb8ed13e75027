//! A child that is started before the program is known. The stand-in for an interpreter is a Bash that speaks on the
//! control socket.

use serde_json::json;

use crate::client::{Init, request};

/// Says that it is up and warm, waits to be told, and shows what it was told; then becomes the program.
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
fn a_warm_child_is_handed_the_request_and_becomes_the_program() {
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
fn a_request_may_come_before_the_child_is_up() {
    let mut init = warm(&format!("sleep 0.3; {INTERPRETER}"));
    init.send(&request("{}", "exit 6"));
    let reply = init.reply();
    assert_eq!((reply.ready.len(), reply.exit.expect("an EXIT")["status"].clone()), (0, json!(6)));
}

#[test]
fn a_warm_child_that_died_is_replaced_by_a_cold_one() {
    let mut init = warm("[ \"$SANDBOX_CONTROL_FD\" ] && exit 1; exec bash \"$1\"");
    assert_eq!(init.next().map(|(kind, _)| kind), Some(0x81));
    init.send(&request("{}", "echo cold; exit 7"));
    let reply = init.reply();
    assert_eq!((&reply.stdout[..], &reply.exit.expect("an EXIT")["status"]), (&b"cold\n"[..], &json!(7)));
}

#[test]
fn a_warm_child_that_nobody_needed_goes_with_the_init() {
    let mut init = warm("trap '' HUP TERM; setsid sleep 1000 & printf u >&\"$SANDBOX_CONTROL_FD\"; sleep 1000");
    assert_eq!(init.next().map(|(kind, _)| kind), Some(0x81));
    drop(init.input.take());
    assert_eq!(init.status(), 0);
}

#[test]
fn a_deadline_holds_for_a_warm_child_that_never_begins() {
    let mut init = warm("printf u >&\"$SANDBOX_CONTROL_FD\"; sleep 1000");
    init.send(&request(r#"{"wallMs":150,"graceMs":0}"#, "true"));
    assert_eq!(init.reply().exit.expect("an EXIT")["killedBy"], json!("deadline"));
}
