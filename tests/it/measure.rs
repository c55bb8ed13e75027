//! Measurements, which only print: `cargo test --test it measure:: -- --ignored --nocapture --test-threads=1`. The fake
//! engine runs the programs, so what is seen is the server's own time.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{FakeServer, calls::create, fake_server::Kind, scale::how_many, server::TOKEN};

/// Sends a request, and how long its answer took.
async fn timed(server: &FakeServer, token: &str, method: &Method, path: &str, body: Option<&Value>) -> (Duration, u16) {
    let request = server.http.request(method.clone(), format!("http://{}{path}", server.address)).bearer_auth(token);
    let request = if let Some(body) = body { request.json(body) } else { request };
    let begun = Instant::now();
    let answer = request.send().await.expect("an answer");
    let status = answer.status().as_u16();
    answer.bytes().await.expect("a body");
    (begun.elapsed(), status)
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// What the database costs a run: runs on servers with it, and on one whose database is away, in turn.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn runs_with_and_without_a_database() {
    let away = FakeServer::with_kernel(&[("DATABASE_URL", "postgres://sandbox@127.0.0.1:1/sandbox")]).await;
    let servers = [
        ("away", away),
        ("SQLite", FakeServer::by(Kind::Sqlite, &[]).await),
        ("PostgreSQL", FakeServer::by(Kind::Postgres, &[]).await),
    ];
    for (what, bytes) in [("a short program", 100), ("a program of 64 KiB", 64 << 10)] {
        let body =
            json!({"conversationId": "c", "language": "python", "code": format!("print x\n# {}", "x".repeat(bytes))});
        let mut times = [const { Vec::new() }; 3];
        for round in 0..how_many(1000, 5000) {
            for at in 0..3 {
                let at = (at + round) % 3;
                let (took, status) = timed(&servers[at].1, TOKEN, &Method::POST, "/v1/runs", Some(&body)).await;
                assert_eq!(status, 200);
                times[at].push(took);
            }
        }
        let without = median(&mut times[0]);
        println!("{what}, database away: median {without:?}");
        for at in 1..3 {
            let with = median(&mut times[at]);
            let (more, ratio) =
                (with.as_secs_f64() - without.as_secs_f64(), with.as_secs_f64() / without.as_secs_f64());
            println!("{what}, {}: median {with:?}, {:+.3} ms, ratio {ratio:.3}", servers[at].0, more * 1000.0);
        }
    }
    for (_, server) in servers {
        server.stop().await;
    }
}

/// How long 404 takes for what another owner has and for what no owner has, in turn.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn foreign_and_absent_ids() {
    let server = FakeServer::with_kernel(&[]).await;
    let (ann, bob) = (
        create(&server, json!({"name": "ann", "owner": "ann"})).await.1,
        create(&server, json!({"name": "bob", "owner": "bob"})).await.1,
    );
    let send = async |path: &str, key: &str, body: Value| {
        let post = server.http.post(format!("http://{}{path}", server.address)).bearer_auth(&bob);
        let post = if key.is_empty() { post } else { post.header("Idempotency-Key", key) };
        post.json(&body).send().await.expect("an answer").json::<Value>().await.expect("JSON")
    };
    let run = json!({"conversationId": "secret", "language": "python", "code": "write f bobs"});
    let made = send("/v1/runs", "key", run).await;
    let url = made["result"]["files"][0]["url"].as_str().expect("a link").to_owned();
    let run = made["runId"].as_str().expect("an id").to_owned();
    let session = send("/v1/sessions", "", json!({"conversationId": "secret"})).await;
    let session = session["sessionId"].as_str().expect("an id").to_owned();
    let never = "0".repeat(32);
    // Of a file that is there, and of one that never was, with a signature that is not right.
    let link = url[url.find("/files/").expect("a path")..].to_owned();
    let forged = |link: &str| link.replace("sig=", "sig=0");
    let rows = [
        ("conversation", "/v1/conversations/secret/files/f".to_owned(), "/v1/conversations/absent/files/f".to_owned()),
        ("archive", "/v1/conversations/secret/archive".to_owned(), "/v1/conversations/absent/archive".to_owned()),
        ("run", format!("/v1/runs/{run}"), format!("/v1/runs/run-{never}")),
        ("events of a run", format!("/v1/runs/{run}/events"), format!("/v1/runs/run-{never}/events")),
        ("session", format!("/v1/sessions/{session}"), format!("/v1/sessions/session-{never}")),
        ("link", forged(&link), forged(&link.replace("/secret/", "/absent/"))),
    ];
    for (name, foreign, absent) in rows {
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..how_many(2000, 10_000) {
            for at in 0..2 {
                let at = (at + round) % 2;
                let path = [&foreign, &absent][at];
                let (took, status) = timed(&server, &ann, &Method::GET, path, None).await;
                assert!((400..500).contains(&status), "{path}: {status}");
                times[at].push(took);
            }
        }
        tell(name, times);
    }
    // A key that another owner has used begins a run, as one that none has.
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..how_many(500, 2000) {
        // Random, so that neither kind lies closer together in the database's index.
        let [other, own] = [(); 2].map(|()| uuid::Uuid::new_v4().to_string());
        send("/v1/runs", &other, json!({"language": "python", "code": "print x"})).await;
        for at in 0..2 {
            let at = (at + round) % 2;
            let key = [&other, &own][at];
            let post = server.http.post(format!("http://{}/v1/runs", server.address)).bearer_auth(&ann);
            let post = post.header("Idempotency-Key", key).json(&json!({"language": "python", "code": "print x"}));
            let begun = Instant::now();
            assert_eq!(post.send().await.expect("an answer").status(), 200);
            times[at].push(begun.elapsed());
        }
    }
    tell("idempotency key", times);
    let close = server.http.delete(format!("http://{}/v1/sessions/{session}", server.address)).bearer_auth(&bob);
    assert!(close.send().await.expect("an answer").status().is_success());
    server.stop().await;
}

fn tell(name: &str, [mut foreign, mut absent]: [Vec<Duration>; 2]) {
    let (foreign, absent) = (median(&mut foreign), median(&mut absent));
    let more = (foreign.as_secs_f64() - absent.as_secs_f64()) * 1e6;
    println!("{name}: another owner's {foreign:?}, absent {absent:?}, {more:+.1} µs");
}
