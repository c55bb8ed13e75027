//! Load from clients: many at once on few slots, connections that send nothing, and a program that prints without end.
//! The server is a separate process, whose memory and programs are measured from outside.

use std::{
    collections::BTreeMap,
    fs,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::interval,
};

use crate::support::{
    engines::{containers, docker},
    process::Process,
    scale::{how_many, long},
    server::TOKEN,
    until,
};

const SLOTS: usize = 2;
const LOOK_EVERY: Duration = Duration::from_millis(10);
const MEMORY_BYTES_MAX: u64 = 128 << 20;

/// How many processes of this machine have this word as their name.
fn processes(name: &str) -> usize {
    let named = |entry: &fs::DirEntry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).next().is_some_and(|first| first == name.as_bytes())
    };
    fs::read_dir("/proc").expect("processes").flatten().filter(named).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_get_answers_or_refusals_within_the_slots() {
    let clients = how_many(150, 1000);
    let slots = SLOTS.to_string();
    let server = Process::start(&[
        ("SANDBOX_ADMISSION__SLOTS", &slots),
        ("SANDBOX_ADMISSION__QUEUE_MAX", "8"),
        ("SANDBOX_STANDBY__TOTAL_MAX", "0"),
        // Clients that share this machine's cores may come late to say what they want; that is another test's matter.
        ("SANDBOX_SERVER__HEADER_READ_MS", "60000"),
    ])
    .await;
    // Seen from outside: each program is a process of this machine with a name that nothing else has.
    let name = format!("crowd-{}", server.instance());
    let (over, most) = (AtomicBool::new(false), AtomicUsize::new(0));
    let counting = async {
        let mut looks = interval(LOOK_EVERY);
        while !over.load(Ordering::SeqCst) {
            looks.tick().await;
            most.fetch_max(processes(&name), Ordering::SeqCst);
        }
    };
    let crowd = async {
        let ends = join_all((0..clients).map(|n| one_of_many(&server, &name, n))).await;
        over.store(true, Ordering::SeqCst);
        ends
    };
    let ((), ends) = tokio::join!(counting, crowd);
    let answered = Instant::now();
    let mut statuses = BTreeMap::new();
    for status in ends {
        *statuses.entry(status).or_insert(0) += 1;
    }
    let most = most.into_inner();
    assert!((1..=SLOTS).contains(&most), "{most} programs at once");
    assert!(statuses.keys().eq([&200, &429]), "some are served, the others refused: {statuses:?}");

    let (engine, instance) = (docker().await, server.instance());
    until("it is idle", async || containers(&engine, &instance).await == 0).await;
    let idle = answered.elapsed();
    println!("{clients} clients: {statuses:?}, at most {most} programs at once, idle after {idle:?}");
    // On a machine that does something else meanwhile the short form says only that it comes to be idle.
    assert!(!long() || idle < Duration::from_secs(5), "idle only after {idle:?}");
    server.stop().await;
}

/// One client; its status, once the answer has been held to its form.
async fn one_of_many(server: &Process, name: &str, n: usize) -> u16 {
    let code = format!("(exec -a {name} sleep 0.2); echo {n}");
    let body = json!({"language": "bash", "code": code, "wait": 120});
    let answer = server.http.post(server.url("/v1/runs")).bearer_auth(TOKEN).json(&body).send().await;
    let answer = answer.expect("an answer");
    let (status, after) = (answer.status().as_u16(), answer.headers().get("retry-after").cloned());
    let kind = answer.headers()["content-type"].to_str().expect("text").to_owned();
    let body: Value = answer.json().await.expect("JSON");
    if status == 200 {
        assert_eq!(body["result"]["stdout"], format!("{n}\n"), "{body}");
    } else {
        assert_eq!((kind.as_str(), &body["status"]), ("application/problem+json", &json!(status)), "{body}");
        assert!(after.is_some_and(|after| after.to_str().is_ok_and(|text| text.parse::<u32>().is_ok())), "{body}");
        assert!(body["code"] == "queue_full" && body["requestId"].is_string(), "{body}");
    }
    status
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_do_not_lock_out_others() {
    let slow = how_many(300, 2000);
    // Fewer places than slow clients, in either form.
    let places = (slow / 2).to_string();
    let settings = [("SANDBOX_SERVER__CONNECTIONS_MAX", places.as_str()), ("SANDBOX_SERVER__HEADER_READ_MS", "60000")];
    let server = Process::start(&settings).await;
    let mut held = Vec::new();
    for n in 0..slow {
        let mut stream = TcpStream::connect(server.address).await.expect("connected");
        // Some send nothing, others stop in the middle of their head.
        if n % 3 > 0 {
            stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: local").await.expect("sent");
        }
        held.push(stream);
    }
    let mut times = Vec::new();
    for _ in 0..20 {
        let from = Instant::now();
        let mut stream = TcpStream::connect(server.address).await.expect("connected");
        let request = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        times.push(from.elapsed());
    }
    times.sort();
    let (p95, worst) = (times[times.len() * 95 / 100], times[times.len() - 1]);
    println!("{slow} slow connections, {places} places: /healthz p95 {p95:?}, worst {worst:?}");
    // On a machine that does something else meanwhile the short form says only that no client waits for a slow one.
    let bound = if long() { Duration::from_millis(100) } else { Duration::from_secs(5) };
    assert!(p95 < bound, "{p95:?}");
    drop(held);
    server.stop().await;
}

/// They come all at once, so that requests wait unread in the server's sockets while others ask for their places. On a
/// busy machine a request that waits too long for its turn is told to come again; none is lost.
#[tokio::test(flavor = "multi_thread")]
async fn sent_requests_are_answered_when_connections_run_out() {
    let (clients, places) = (how_many(500, 2000), "20");
    let settings = [("SANDBOX_SERVER__CONNECTIONS_MAX", places), ("SANDBOX_SERVER__HEADER_READ_MS", "60000")];
    let server = Process::start(&settings).await;
    let ask = async || {
        let mut stream = TcpStream::connect(server.address).await?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.map(|_| answer)
    };
    let from = Instant::now();
    let answers = join_all((0..clients).map(|_| ask())).await;
    let took = from.elapsed();
    let (good, others): (Vec<_>, Vec<_>) =
        answers.into_iter().partition(|answer| matches!(answer, Ok(text) if text.starts_with("HTTP/1.1 200")));
    println!("{} of {clients} clients on {places} places were served within {took:?}, {others:?}", good.len());
    for answer in others {
        let text = answer.expect("every sent request is answered").to_lowercase();
        assert!(text.starts_with("http/1.1 503") && text.contains("retry-after"), "{text}");
    }
    assert!(good.len() * 10 >= clients * 9, "most are served");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_output_does_not_grow_server_memory() {
    let bytes = how_many(200_000_000, 5_000_000_000);
    let server = Process::start(&[
        ("SANDBOX_LIMITS__OUTPUT_BYTES_MAX", "1000000000000"),
        ("SANDBOX_LIMITS__WALL_MS", "1200000"),
        ("SANDBOX_LIMITS__CPU_MILLIS", "2000"),
    ])
    .await;
    let body = json!({"language": "bash", "code": format!("head -c {bytes} /dev/zero; echo end >&2"), "wait": 1200});
    let http = crate::support::http::builder().timeout(Duration::from_mins(30)).build().expect("a client");
    let answer = http.post(server.url("/v1/runs")).bearer_auth(TOKEN).json(&body).send().await.expect("an answer");
    let run: Value = answer.json().await.expect("JSON");
    assert_eq!(run["outcome"]["ended"], "exited", "{}", run["outcome"]);
    assert_eq!((&run["result"]["stderr"], &run["figures"]["stdoutBytes"]), (&json!("end\n"), &json!(bytes)));
    let peak = server.memory_peak_bytes();
    println!("{bytes} bytes printed: the server's memory was at most {} MiB", peak >> 20);
    assert!(peak < MEMORY_BYTES_MAX, "{peak} bytes");
    server.stop().await;
}
