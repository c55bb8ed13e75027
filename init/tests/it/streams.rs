//! Input and output: whole, in order, and bounded in memory.

use std::{thread, time::Duration};

use serde_json::json;

use crate::client::{Init, frame, request};

const MEBIBYTE: usize = 1 << 20;

#[test]
fn program_without_input_reads_end_of_file() {
    assert_eq!(Init::run("cat; [ /dev/stdin -ef /dev/null ] && echo null").stdout, b"null\n");
}

#[test]
fn input_before_and_after_the_start_arrives_in_order() {
    let mut init = Init::bash();
    init.send(&[frame(1, b"{}"), frame(4, b"one "), frame(2, b"cat"), frame(3, b"")].concat());
    init.until("one");
    init.send(&[frame(4, b"two"), frame(5, b"")].concat());
    assert_eq!(init.reply().stdout, b"two");
}

#[test]
fn large_input_is_passed_on_whole() {
    let mut init = Init::bash();
    init.send(&[frame(1, b"{}"), frame(2, b"sleep 0.2; wc -c"), frame(3, b"")].concat());
    for _ in 0..32 {
        init.send(&frame(4, &vec![b'x'; MEBIBYTE]));
    }
    init.send(&frame(5, b""));
    assert_eq!(init.reply().stdout, format!("{}\n", 32 * MEBIBYTE).as_bytes());
}

#[test]
fn unread_input_does_not_delay_the_exit() {
    let mut init = Init::bash();
    init.send(&[frame(1, b"{}"), frame(2, b"exec <&-; sleep 3; exit 3"), frame(3, b"")].concat());
    for _ in 0..8 {
        init.send(&frame(4, &vec![b'x'; MEBIBYTE]));
    }
    assert_eq!(init.reply().exit.expect("an EXIT")["status"], json!(3));
}

#[test]
fn large_output_waits_for_a_slow_reader_and_is_whole() {
    let mut init = Init::bash();
    init.send(&request("{}", "head -c 33554432 /dev/zero | tr '\\0' x; echo end >&2"));
    thread::sleep(Duration::from_millis(500));
    assert!(init.memory_kib() < 8 << 10, "the init holds {} KiB", init.memory_kib());
    let reply = init.reply();
    assert_eq!((reply.stdout.len(), &reply.stderr[..]), (32 * MEBIBYTE, &b"end\n"[..]));
    assert!(reply.stdout.iter().all(|byte| *byte == b'x'));
}

#[test]
fn exit_follows_all_of_a_large_output() {
    let mut init = Init::bash();
    init.send(&request("{}", "seq 200000 & seq 200000 >&2 & wait; kill -9 $$"));
    let reply = init.reply();
    let want: Vec<u8> = (1..=200_000).flat_map(|number| format!("{number}\n").into_bytes()).collect();
    assert!(reply.stdout == want && reply.stderr == want);
}

#[test]
fn reader_that_takes_nothing_is_abandoned_after_the_end() {
    let mut init = Init::bash();
    init.send(&request(r#"{"wallMs":500}"#, "head -c 33554432 /dev/zero"));
    // It would report the deadline, but its output does not get that far.
    assert_eq!(init.status(), 125);
}

#[test]
fn closed_streams_do_not_end_the_run() {
    let mut init = Init::bash();
    init.send(&request("{}", "exec >&- 2>&-; sleep 0.2; exit 4"));
    assert_eq!(init.reply().exit.expect("an EXIT")["status"], json!(4));
}
