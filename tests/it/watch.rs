//! Runs that are watched, talked to and stopped, on real Docker, as clients of `/v1` see them.

use std::time::{Duration, Instant, SystemTime};

use reqwest::{Response, StatusCode};
use serde_json::{Value, json};

use crate::support::{Server, server::TOKEN, sse::Events, until};

/// Ignores every signal it can, and leaves a grandchild in a session of its own that does too.
const STUBBORN: &str = "
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print('on its own', flush=True)
    else:
        os._exit(0)
while True:
    time.sleep(1000)
";

/// A sandbox to a run, so that containers can be counted.
const NO_STANDBY: (&str, &str) = ("SANDBOX_STANDBY__TOTAL_MAX", "0");
/// Busy machines are slow: no run here ends for its time.
const NO_HURRY: (&str, &str) = ("SANDBOX_LIMITS__WALL_MS", "300000");

fn base(server: &Server) -> String {
    server.url("")
}

async fn post(server: &Server, path: &str, body: impl Into<reqwest::Body>) -> Response {
    let call = server.http.post(server.url(path)).bearer_auth(TOKEN);
    call.header("content-type", "application/json").body(body).send().await.expect("an answer")
}

/// Begins a run without waiting; its id.
async fn begin(server: &Server, more: Value) -> String {
    let mut body = json!({"language": "python", "wait": 0});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let response = post(server, "/v1/runs", body.to_string()).await;
    assert_eq!(response.status(), 202);
    let run: Value = response.json().await.expect("JSON");
    run["runId"].as_str().expect("an id").to_owned()
}

async fn get(server: &Server, path: &str) -> Value {
    let response = server.http.get(server.url(path)).bearer_auth(TOKEN).send().await.expect("an answer");
    response.json().await.expect("JSON")
}

/// Sends input; the status, and the code of a refusal.
async fn send(server: &Server, run: &str, query: &str, input: impl Into<reqwest::Body>) -> (u16, String) {
    let response = post(server, &format!("/v1/runs/{run}/stdin{query}"), input).await;
    let status = response.status();
    if status == StatusCode::ACCEPTED {
        return (202, String::new());
    }
    let problem: Value = response.json().await.expect("a problem");
    (status.as_u16(), problem["code"].as_str().expect("a code").to_owned())
}

fn refused(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

#[expect(
    clippy::disallowed_methods,
    reason = "the program tells the time of this machine, and it is compared with that"
)]
fn unix_now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970")
}

/// Waits until no container is left, and says how long that took.
async fn gone(server: &Server, since: Instant, by: &str) {
    until("the container is gone", async || server.containers().await == 0).await;
    println!("measured: cancelled by {by}, the container is gone after {:?}", since.elapsed());
    server.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn input_reaches_a_running_program_at_once() {
    const LINES: [(&str, &str); 4] = [
        (
            "python",
            "import sys\nprint('ready', flush=True)\nfor line in sys.stdin: print('got', line, end='', flush=True)",
        ),
        ("bash", "echo ready; while read -r line; do echo \"got $line\"; done"),
        (
            "javascript",
            "import { createInterface } from 'node:readline';\nconsole.log('ready');\n\
            for await (const line of createInterface({ input: process.stdin })) console.log('got', line);",
        ),
        (
            "typescript",
            "import { createInterface } from 'node:readline';\nconsole.log('ready' as string);\n\
            for await (const line of createInterface({ input: process.stdin })) console.log('got', line);",
        ),
    ];
    for standbys in ["0", "12"] {
        let server =
            Server::with(&[("SANDBOX_STANDBY__TOTAL_MAX", standbys), ("SANDBOX_STANDBY__NAMELESS_MAX", "0")]).await;
        for (language, code) in LINES {
            let taken = server.standbys.taken();
            if standbys != "0" {
                // The first run makes the conversation an active one; then one stands by for it.
                server.run(language, language, "0").await;
                let runner = server.catalog.find(&language.parse().expect("a language")).expect("a runner");
                until("one stands by", async || server.standbys.standing_by(&runner.image) > 0).await;
            }
            let run = begin(
                &server,
                json!({"language": language, "conversationId": language, "code": code,
                       "stdin": "zero\n", "stdinOpen": true}),
            );
            let run = run.await;
            let mut events = Events::open(&server.http, &base(&server), &run).await;
            events.printed("got zero").await;
            assert_eq!(send(&server, &run, "", "one\n").await.0, 202);
            events.printed("got one").await;
            assert_eq!(get(&server, &format!("/v1/runs/{run}")).await["stdinOpen"], true);
            assert_eq!(send(&server, &run, "?eof=true", "t\u{e9}o\n").await.0, 202);
            let last = events.last().await;
            assert_eq!(last["outcome"]["exitCode"], 0, "{language}: {last}");
            let result = get(&server, &format!("/v1/runs/{run}")).await;
            let expected = "ready\ngot zero\ngot one\ngot t\u{e9}o\n";
            assert_eq!(result["result"]["stdout"], expected, "{language} {standbys}: {result}");
            assert_eq!(result["stdinOpen"], false, "{language} {standbys}: {result}");
            assert_eq!(send(&server, &run, "", "late").await, refused(409, "input_closed"));
            assert_eq!(server.standbys.taken() > taken, standbys != "0", "{language}");
        }
        server.settled().await;
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn input_is_refused_without_a_reader_and_bounded_when_unread() {
    let server = Server::with(&[NO_STANDBY, NO_HURRY]).await;
    let piece = vec![b'x'; 1 << 20];
    let closed = begin(&server, json!({"code": "import time; time.sleep(1000)"})).await;
    assert_eq!(send(&server, &closed, "", "x").await, refused(409, "input_closed"));
    assert_eq!(get(&server, &format!("/v1/runs/{closed}")).await["stdinOpen"], false);
    let run =
        begin(&server, json!({"code": "print('up', flush=True)\nimport time; time.sleep(1000)", "stdinOpen": true}));
    let run = run.await;
    let mut events = Events::open(&server.http, &base(&server), &run).await;
    events.printed("up").await;
    assert_eq!(send(&server, &run, "", vec![b'x'; (1 << 20) + 1]).await, refused(413, "too_large"));
    assert_eq!(send(&server, &run, "?eof=perhaps", "").await, refused(422, "invalid_argument"));
    let unknown = "run-00000000000000000000000000000000";
    assert_eq!(send(&server, unknown, "", "x").await, refused(404, "run_not_found"));
    let mut taken = 0;
    let told = loop {
        let told = send(&server, &run, "", piece.clone()).await;
        if told.0 != 202 {
            break told;
        }
        taken += piece.len();
        assert!(taken < 16 << 20, "a program that never reads was sent {taken} bytes");
    };
    assert_eq!(told, refused(429, "input_full"));
    println!("measured: a program that never reads is sent {taken} bytes");
    for run in [&closed, &run] {
        let cancelled = post(&server, &format!("/v1/runs/{run}/cancel"), "").await;
        let cancelled: Value = cancelled.json().await.expect("JSON");
        assert_eq!(cancelled["outcome"]["ended"], "cancelled", "{cancelled}");
        assert_eq!(send(&server, run, "", "x").await, refused(409, "input_closed"));
    }
    server.settled().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn program_that_ignores_signals_is_ended_by_cancel_and_disconnect() {
    let server = Server::with(&[NO_STANDBY, NO_HURRY]).await;
    let run = begin(&server, json!({"code": STUBBORN})).await;
    let mut events = Events::open(&server.http, &base(&server), &run).await;
    events.printed("on its own").await;
    let asked = Instant::now();
    let cancelled: Value = post(&server, &format!("/v1/runs/{run}/cancel"), "").await.json().await.expect("JSON");
    assert_eq!(cancelled["outcome"]["ended"], "cancelled", "{cancelled}");
    gone(&server, asked, "request").await;
    assert_eq!(events.last().await["outcome"]["ended"], "cancelled");

    let body = json!({"language": "python", "conversationId": "left", "code": STUBBORN}).to_string();
    let mut waiting = Box::pin(post(&server, "/v1/runs", body));
    let find = async || get(&server, "/v1/runs?conversationId=left").await["runs"][0]["runId"].clone();
    let watch = async {
        until("it is there", async || find().await.is_string()).await;
        let run = find().await;
        let mut events = Events::open(&server.http, &base(&server), run.as_str().expect("an id")).await;
        events.printed("on its own").await;
        events
    };
    let mut events = tokio::select! {
        answer = &mut waiting => panic!("answered: {answer:?}"),
        events = watch => events,
    };
    let left = Instant::now();
    drop(waiting);
    assert_eq!(events.last().await["outcome"]["ended"], "cancelled");
    gone(&server, left, "closed connection").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_refuses_new_runs_waits_and_then_cancels() {
    let server = Server::with(&[NO_STANDBY, NO_HURRY, ("SANDBOX_SERVER__SHUTDOWN_GRACE_MS", "6000")]).await;
    let polite = "until [ -e go ]; do sleep 0.05; done; echo bye";
    let polite = begin(&server, json!({"language": "bash", "conversationId": "polite", "code": polite})).await;
    let stubborn = begin(&server, json!({"conversationId": "stubborn", "code": STUBBORN})).await;
    let (http, base, root) = (server.http.clone(), base(&server), server.root.clone());
    let mut polite = Events::open(&http, &base, &polite).await;
    let mut stubborn = Events::open(&http, &base, &stubborn).await;
    stubborn.printed("on its own").await;
    polite.find(|event| event["kind"] == "started").await;
    let begun = Instant::now();
    let watch = async {
        let refused = async || {
            let call = http.post(format!("{base}/v1/runs")).bearer_auth(TOKEN);
            let body = json!({"language": "bash", "code": "sleep 1000", "wait": 0});
            call.json(&body).send().await.map_or(true, |answer| answer.status() == 503)
        };
        until("nothing new is admitted", refused).await;
        std::fs::write(root.join("polite/files/go"), "").expect("a file");
        let last = polite.last().await;
        assert_eq!((&last["outcome"]["ended"], &last["outcome"]["exitCode"]), (&json!("exited"), &json!(0)), "{last}");
        let last = stubborn.last().await;
        assert_eq!(last["outcome"]["ended"], "cancelled", "{last}");
    };
    // That no container is left is asserted by the stop itself.
    tokio::join!(server.stop(), watch);
    println!("measured: stopped after {:?}, 6 s of it grace", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn output_lines_arrive_live_with_figures_at_the_end() {
    let server = Server::with(&[NO_STANDBY, NO_HURRY]).await;
    // It prints a line when the one before has arrived.
    let code = "import sys, time\nopen('a.txt', 'w').write('a')\nfor i in range(5):\n    \
                print(i, time.time(), flush=True)\n    sys.stdin.readline()\ntime.sleep(0.5)\n\
                sys.stdout.buffer.write(b'\\xff\\xfe'); sys.stdout.flush()";
    let run = begin(&server, json!({"code": code, "stdinOpen": true})).await;
    let mut events = Events::open(&server.http, &base(&server), &run).await;
    for expected in 0..5 {
        let event = events.find(|event| event["kind"] == "stdout").await;
        let now = unix_now();
        let text = event["text"].as_str().expect("text");
        let (number, printed) = text.trim().split_once(' ').expect("a line to an event");
        assert_eq!(number, expected.to_string(), "in order, and none is held back for the next");
        let printed = Duration::from_secs_f64(printed.parse().expect("a time"));
        println!("measured: line {number} is at the reader {:?} after it was printed", now.saturating_sub(printed));
        assert_eq!(send(&server, &run, "", "\n").await.0, 202);
    }
    let binary = events.find(|event| event["kind"] == "stdout").await;
    assert_eq!(binary["base64"], "//4=");
    let file = events.find(|event| event["kind"] == "file").await;
    assert_eq!((&file["file"]["path"], &file["file"]["change"]), (&json!("a.txt"), &json!("created")));
    let last = events.last().await;
    let figures = &last["figures"];
    for (name, least) in [("wallMs", 500), ("cpuMs", 1), ("memoryPeakBytes", 1 << 20), ("stdoutBytes", 10)] {
        assert!(figures[name].as_u64().is_some_and(|value| value >= least), "{name}: {last}");
    }
    assert_eq!((&figures["filesChanged"], &figures["stderrBytes"]), (&json!(1), &json!(0)), "{last}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_exhaustion_of_a_child_is_reported() {
    let server = Server::with(&[NO_STANDBY, NO_HURRY]).await;
    let hog = "x = []\nwhile True: x.append(bytearray(1 << 20))";
    let child = format!("import subprocess, sys\nsubprocess.run([sys.executable, '-c', {hog:?}])\nsys.exit(3)");
    for (code, ended, word) in
        [(hog, "out_of_memory", "was killed"), (&child, "exited", "one of its processes was killed")]
    {
        let result = server.run("memory", "python", code).await;
        let outcome = &result["structuredContent"]["outcome"];
        assert_eq!((&outcome["ended"], &outcome["oomKilled"]), (&json!(ended), &json!(true)), "{outcome}");
        let sentence = outcome["sentence"].as_str().expect("a sentence");
        assert!(sentence.contains(word) && sentence.contains("256 MiB"), "{sentence}");
    }
    server.stop().await;
}
