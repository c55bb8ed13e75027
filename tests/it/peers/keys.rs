//! Idempotency keys that are sent to one server and then to another. A server waits 250 ms for a key to be stored and
//! begins the run without it then, so on a busy machine such a request is sent again with another key.

use reqwest::Method;
use serde_json::{Value, json};

use super::Pair;
use crate::support::{
    calls::{metric, request},
    server::TOKEN,
};

impl Pair {
    /// Asks with one key after the other until both servers have stored it in time.
    async fn with_key<T>(&self, ask: impl AsyncFn(String) -> T) -> T {
        let unstored = async || {
            let mut sum = 0;
            for server in [&self.a, &self.b] {
                sum += metric(server, "sandbox_idempotency_keys_unstored_total").await;
            }
            sum
        };
        let mut number = 0;
        loop {
            let before = unstored().await;
            let asked = ask(format!("k-{number}")).await;
            if unstored().await == before {
                return asked;
            }
            number += 1;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_makes_one_sandbox_of_e2b_whichever_server_is_asked() {
    let pair = Pair::start().await;
    let made = pair.with_key(async |key| {
        let mut made = Vec::new();
        for server in [&pair.a, &pair.b] {
            let create = request(server, TOKEN, Method::POST, "/e2b/v2/sandboxes").header("idempotency-key", &key);
            let answer = create.json(&json!({"timeout": 60})).send().await.expect("an answer");
            made.push((answer.status().as_u16(), answer.json::<Value>().await.expect("JSON")));
        }
        made
    });
    let made = made.await;
    assert!(made[0].0 == 201 && made[0] == made[1], "{made:?}");
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotency_key_begins_one_run_at_all_servers() {
    let pair = Pair::start().await;
    let asked = pair.with_key(async |key| {
        let (before, mut runs) = (pair.started(), Vec::new());
        for server in [&pair.a, &pair.b, &pair.a] {
            let request = request(server, TOKEN, Method::POST, "/v1/runs").header("idempotency-key", &key);
            let answer = request.json(&json!({"language": "python", "code": "print once"})).send().await;
            runs.push(answer.expect("an answer").json::<Value>().await.expect("JSON"));
        }
        let after = pair.started();
        (runs, (after.0 - before.0, after.1 - before.1))
    });
    let (runs, started) = asked.await;
    for run in &runs {
        assert_eq!(run["result"]["stdout"], "once\n", "whole, not from the history: {run}");
        assert_eq!(run["runId"], runs[0]["runId"]);
    }
    assert_eq!(started, (1, 0));
    pair.stop().await;
}
