//! Many readers of one run, readers that never read, clients that vanish: over real HTTP, on the fake engine.

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    time::Duration,
};

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::support::{FakeServer, calls::ask, dice::Dice, scale::how_many, server::TOKEN, sse::Events, until};

/// What one run keeps of its output, by default.
const KEPT_BYTES: usize = 256 << 10;
const PATIENCE: Duration = Duration::from_mins(2);

async fn begin(server: &FakeServer, conversation: &str, code: &str) -> (u16, String) {
    let body = json!({"language": "python", "conversationId": conversation, "code": code, "wait": 0});
    let (status, run) = ask(server, Method::POST, "/v1/runs", body).await;
    (status, run["runId"].as_str().unwrap_or_default().to_owned())
}

async fn state(server: &FakeServer, run: &str) -> Value {
    ask(server, Method::GET, &format!("/v1/runs/{run}"), None).await.1
}

/// Asks for the events and takes no byte of the answer.
async fn silent_reader(server: &FakeServer, run: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.expect("a connection");
    let head = format!(
        "GET /v1/runs/{run}/events HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {TOKEN}\r\n\r\n",
        server.address
    );
    stream.write_all(head.as_bytes()).await.expect("a request");
    stream
}

fn numbers(events: &[Value]) -> Vec<u64> {
    events.iter().map(|event| event["number"].as_u64().expect("a number")).collect()
}

/// Whether a reader was told of all that it did not see: numbers are left out only where output was joined or cut.
fn received_every_gap(events: &[Value], printed: usize) -> bool {
    let numbers = numbers(events);
    let explained = |event: &Value| event["kind"] == "cut" || event["kind"] == "stdout";
    let cut = events.iter().filter_map(|event| event["stdoutBytes"].as_u64().filter(|_| event["kind"] == "cut")).max();
    let read = printed_bytes(events);
    numbers.first() == Some(&1)
        && numbers.windows(2).zip(&events[1..]).all(|(pair, event)| pair[0] + 1 == pair[1] || explained(event))
        && read <= printed
        && read + usize::try_from(cut.unwrap_or(0)).expect("a number") >= printed
}

fn printed_bytes(events: &[Value]) -> usize {
    events.iter().filter_map(|event| event["text"].as_str()).map(str::len).sum()
}

/// Busy machines are slow: no run here ends for its time.
const NO_HURRY: (&str, &str) = ("SANDBOX_LIMITS__WALL_MS", "600000");

async fn read_all(mut reader: Events) -> Vec<Value> {
    let mut events = Vec::new();
    while let Some(event) = reader.next().await {
        events.push(event);
    }
    events
}

#[tokio::test(flavor = "multi_thread")]
async fn every_one_of_200_readers_receives_the_end_and_its_gaps() {
    // A log of a few lines: a slow reader misses some of it.
    let server = FakeServer::with(&[NO_HURRY, ("SANDBOX_LIMITS__OUTPUT_KEPT_BYTES", "4096")]).await;
    let code = format!("sleep 500ms\n{}print end", "print 0123456789\n".repeat(3000));
    let (_, run) = begin(&server, "crowd", &code).await;
    let (base, http) = (format!("http://{}", server.address), crate::support::http::client());
    let readers = join_all((0..200).map(|_| Events::open(&http, &base, &run))).await;
    let all = timeout(PATIENCE, join_all(readers.into_iter().map(read_all))).await.expect("in time");
    for events in &all {
        assert_eq!(events.last().expect("events")["outcome"]["ended"], "exited");
        assert!(received_every_gap(events, 33_004));
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_and_silent_readers_do_not_delay_a_run() {
    let server = FakeServer::with(&[NO_HURRY, ("SANDBOX_LIMITS__OUTPUT_BYTES_MAX", "100000000")]).await;
    // Far more than sockets and the log hold together.
    let code = format!("sleep 5s\n{}print end", "flood 50000\nprint .\n".repeat(600));
    let (_, run) = begin(&server, "silent", &code).await;
    let silent = join_all((0..20).map(|_| silent_reader(&server, &run))).await;
    let (base, http) = (format!("http://{}", server.address), crate::support::http::client());
    let mut slow = Events::open(&http, &base, &run).await;
    assert_eq!(slow.next().await.expect("an event")["kind"], "queued");
    until("the run is over", async || state(&server, &run).await["state"] == "finished").await;
    // The silent ones have read nothing and the slow one one event: no run waited for them.
    let over = state(&server, &run).await;
    assert_eq!(over["result"]["figures"]["stdoutBytes"], 30_001_204, "{}", over["outcome"]);
    let again = read_all(Events::open(&http, &base, &run).await).await;
    assert!(printed_bytes(&again) <= KEPT_BYTES, "the log keeps {} bytes", printed_bytes(&again));
    let late = read_all(slow).await;
    assert!(late.iter().any(|event| event["kind"] == "cut"), "it was too slow, and is told so");
    assert_eq!(late.last().expect("events")["kind"], "finished");
    drop(silent);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queued_runs_receive_every_position_change() {
    let server = FakeServer::with(&[("SANDBOX_ADMISSION__SLOTS", "1")]).await;
    let base = format!("http://{}", server.address);
    let (_, first) = begin(&server, "first", "hang").await;
    until("it runs", async || state(&server, &first).await["state"] == "running").await;
    let mut ahead = Vec::new();
    for n in 0..3 {
        ahead.push(begin(&server, &format!("c{n}"), "hang").await.1);
    }
    let (_, last) = begin(&server, "last", "print x").await;
    let mut events = Events::open(&server.http, &base, &last).await;
    assert_eq!(events.next().await.expect("an event")["position"], 4);
    for (position, run) in [3, 2, 1].into_iter().zip(&ahead) {
        ask(&server, Method::POST, &format!("/v1/runs/{run}/cancel"), None).await;
        let event = events.next().await.expect("an event");
        assert_eq!((&event["kind"], &event["position"]), (&json!("queued"), &json!(position)));
        assert_eq!(state(&server, &last).await["position"], position, "the view says the same");
    }
    ask(&server, Method::POST, &format!("/v1/runs/{first}/cancel"), None).await;
    assert_eq!(events.next().await.expect("an event")["kind"], "started");
    assert_eq!(events.last().await["outcome"]["ended"], "exited");
    server.stop().await;
}

/// One client that asks for something and is gone at some moment, in the middle of its request or of the answer.
async fn vanish(server: &FakeServer, n: u64, mut dice: Dice) {
    let programs = ["print x", "sleep 40ms", "hang", "flood 300000", "write f x\nsleep 20ms\noom"];
    let code = dice.one_of(&programs);
    let body =
        json!({"language": "python", "conversationId": format!("c{}", dice.below(40)), "code": code}).to_string();
    let request = match n % 4 {
        0 => "GET /v1/runs?limit=200 HTTP/1.1\r\n".to_owned(),
        1 => {
            let runs = ask(server, Method::GET, "/v1/runs?limit=1", None).await.1;
            let run = runs["runs"][0]["runId"].as_str().unwrap_or("run-00000000000000000000000000000000").to_owned();
            format!("GET /v1/runs/{run}/events HTTP/1.1\r\n")
        }
        _ => "POST /v1/runs HTTP/1.1\r\ncontent-type: application/json\r\n".to_owned(),
    };
    let head = format!("host: {}\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: ", server.address);
    let body = if request.starts_with("POST") { body } else { String::new() };
    let whole = format!("{request}{head}{}\r\n\r\n{body}", body.len());
    let length = if dice.below(4) == 0 { dice.index(whole.len()) } else { whole.len() };
    let part = &whole.as_bytes()[..length];
    let Ok(mut stream) = TcpStream::connect(server.address).await else { return };
    let stay = Duration::from_millis(dice.below(120));
    // It leaves when its time is up, whatever it was doing.
    let _ = timeout(stay, async {
        stream.write_all(part).await?;
        let mut answer = [0; 1024];
        while stream.read(&mut answer).await? > 0 {}
        Ok::<_, std::io::Error>(())
    })
    .await;
}

/// One client that is gone as soon as its program runs.
async fn vanish_when_served(server: &FakeServer, conversation: String) {
    let path = format!("/v1/runs?conversationId={conversation}");
    let body = json!({"language": "python", "conversationId": conversation, "code": "hang"});
    let runs = async || ask(server, Method::GET, &path, None).await.1["runs"][0]["state"] == "running";
    tokio::select! {
        answer = ask(server, Method::POST, "/v1/runs", body) => panic!("answered: {answer:?}"),
        () = until("it is served", runs) => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnected_clients_leave_no_run_and_no_sandbox() {
    const SLOTS: usize = 4;
    const QUEUE: usize = 16;
    let clients = how_many(100, 1000);
    let seed = RandomState::new().build_hasher().finish();
    println!("seed {seed}, {clients} clients");
    let server = FakeServer::with(&[
        NO_HURRY,
        ("SANDBOX_ADMISSION__SLOTS", &SLOTS.to_string()),
        ("SANDBOX_ADMISSION__QUEUE_MAX", &QUEUE.to_string()),
    ])
    .await;
    server.engine.faults().start_delay = Duration::from_millis(5);
    let dice = |n: u64| Dice::new(seed ^ (n << 32));
    for crowd in (0..clients as u64).collect::<Vec<_>>().chunks(25) {
        join_all(crowd.iter().map(|n| vanish(&server, *n, dice(*n)))).await;
    }
    let runs = &server.mcp.runs;
    until("no run is under way", async || runs.under_way() == 0).await;
    // On a slow machine all of them may have been too quick: these vanish once they are served.
    join_all((0..SLOTS).map(|n| vanish_when_served(&server, format!("served-{n}")))).await;
    println!("{} sandboxes were started", server.engine.started().len());
    until("no run is under way", async || runs.under_way() == 0).await;
    until("no lease is held", async || server.janitor.leased() == 0).await;
    until("no sandbox is left", async || server.engine.live().is_empty()).await;
    // Every slot and every place is free: as many run, as many wait, and the next is refused.
    let mut begun = Vec::new();
    for n in 0..SLOTS + QUEUE {
        let (status, run) = begin(&server, &format!("after-{n}"), "hang").await;
        assert_eq!(status, 202, "place {n}");
        begun.push(run);
    }
    assert_eq!(begin(&server, "one-too-many", "hang").await.0, 429);
    for run in &begun[..SLOTS] {
        until("it has a slot", async || state(&server, run).await["state"] == "running").await;
    }
    assert_eq!(runs.under_way(), SLOTS + QUEUE);
    server.stop().await;
}
