//! How programs end; no process may remain.

use serde_json::{Value, json};

use crate::client::{Init, Reply, frame, request};

fn ending(reply: &Reply) -> (&Value, &Value) {
    let exit = reply.exit.as_ref().expect("an EXIT");
    (&exit["status"], &exit["signal"])
}

#[test]
fn exit_status_is_reported() {
    for status in 0..=255 {
        let reply = Init::run(&format!("exit {status}"));
        assert_eq!(ending(&reply), (&json!(status), &Value::Null));
    }
}

#[test]
fn death_by_a_signal_is_reported_as_a_signal() {
    for signal in [1, 2, 6, 9, 11, 13, 14, 15] {
        let reply = Init::run(&format!("kill -{signal} $$"));
        assert_eq!(ending(&reply), (&Value::Null, &json!(signal)));
        assert!(reply.stderr.is_empty());
    }
}

#[test]
fn signal_frame_signals_the_program() {
    let mut init = Init::bash();
    init.send(&request("{}", "trap 'echo got it; exit 7' USR1; echo ready; while :; do read -t 1 < <(:); done"));
    init.until("ready");
    init.send(&frame(6, &[10]));
    let reply = init.reply();
    assert_eq!((&reply.stdout[..], ending(&reply).0), (&b"got it\n"[..], &json!(7)));
}

#[test]
fn deadline_kills_all_processes_and_is_reported() {
    let mut init = Init::bash();
    init.send(&request(r#"{"wallMs":2000,"graceMs":50}"#, "trap '' TERM INT; sleep 100 & echo began; sleep 100"));
    let reply = init.reply();
    let exit = reply.exit.expect("an EXIT");
    assert_eq!(
        (&exit["killedBy"], &exit["signal"], &reply.stdout[..]),
        (&json!("deadline"), &json!(9), &b"began\n"[..])
    );
    assert_eq!(init.status(), 0);
}

#[test]
fn process_whose_name_is_no_text_is_killed() {
    let background = r"(printf '\377' > /proc/$BASHPID/comm; echo > renamed; while :; do :; done) &";
    let reply = Init::run(&format!("mkfifo renamed; {background} read < renamed"));
    assert_eq!(ending(&reply), (&json!(0), &Value::Null));
}

#[test]
fn program_without_a_deadline_is_not_killed() {
    let mut init = Init::bash();
    init.send(&request(r#"{"wallMs":0,"graceMs":1}"#, "sleep 0.2; echo done"));
    let reply = init.reply();
    assert_eq!((&reply.stdout[..], reply.exit.expect("an EXIT").get("killedBy")), (&b"done\n"[..], None));
}

#[test]
fn daemons_die_with_the_program_and_do_not_keep_its_output_open() {
    let daemon = "setsid bash -c '(setsid sleep 1000 &) ; trap \"\" TERM HUP; sleep 1000' &";
    let reply = Init::run(&format!("{daemon} {daemon} sleep 0.1; echo over"));
    assert_eq!((&reply.stdout[..], ending(&reply).0), (&b"over\n"[..], &json!(0)));
}

#[test]
fn orphans_are_collected_while_the_program_runs() {
    let program = "for i in $(seq 200); do (true &) ; done; for i in $(seq 300); do sleep 0.1; \
        left=$(ps -o stat= --ppid $PPID | grep -c Z); [ $left = 0 ] && break; done; echo $left";
    let reply = Init::run(program);
    assert_eq!(String::from_utf8_lossy(&reply.stdout), "0\n");
}

#[test]
fn output_before_a_sudden_death_is_delivered() {
    let reply = Init::run("printf '%070000d' 1; echo end >&2; kill -9 $$");
    assert_eq!((reply.stdout.len(), &reply.stderr[..]), (70_000, &b"end\n"[..]));
}

#[test]
fn program_starts_with_default_signal_dispositions() {
    let reply = Init::run("grep -E 'Sig(Blk|Ign)' /proc/self/status");
    let text = String::from_utf8_lossy(&reply.stdout).into_owned();
    let mask =
        |name| u64::from_str_radix(text.split(name).nth(1).expect("there").lines().next().expect("a line").trim(), 16);
    // Only the 31 named signals are compared; above them the test process' own dispositions are inherited.
    assert_eq!((mask("SigBlk:"), mask("SigIgn:").map(|mask| mask & 0x7fff_ffff)), (Ok(0), Ok(0)));
}

#[test]
fn interpreter_starts_with_an_empty_signal_mask() {
    // A shell has a mask of its own; this interpreter shows the one that it was started with.
    let mut init = Init::start(&[], &["grep", "-hE", "^Sig(Blk|Ign)", "/proc/self/status"]);
    init.send(&request("{}", "no program"));
    let reply = init.reply();
    let text = String::from_utf8_lossy(&reply.stdout).into_owned();
    assert!(text.contains("SigBlk:\t0000000000000000"), "{text}");
}

#[test]
fn closed_output_ends_the_program() {
    let mut init = Init::bash();
    init.send(&request("{}", "echo ready; trap '' PIPE; while sleep 0.05; do echo more; done"));
    init.until("ready");
    assert_eq!(init.hang_up(), 125);
}

#[test]
fn init_that_the_server_attaches_to_ends_when_its_input_is_closed() {
    let mut init = Init::with(&["SANDBOX_ATTACHED_LATER=1"], &[], &["bash"]);
    init.send(&request("{}", "echo done"));
    while init.next().expect("more frames").0 != 0x84 {}
    // Without the variable it ends within milliseconds of EXIT.
    std::thread::sleep(std::time::Duration::from_millis(500));
    init.send(&vec![0; 100_000]);
    assert!(init.is_running());
    drop(init.input.take());
    assert_eq!(init.status(), 0);
}
