//! Health probes, and requests with a token, while clients without one hold connections: by bodies that they send
//! slowly, and by probes of an engine that hangs. What probes are told.

use super::{Attack, PLACES, ask, get, large_file, others_are_answered};
use crate::support::{FakeServer, server::TOKEN, until};

/// Much more than is sent.
const BODY: &str = "content-length: 1000000\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_health_probes_do_not_lock_out_others() {
    let server = FakeServer::with(&[PLACES]).await;
    let attacks = ["/healthz", "/readyz", "/health"].map(|path| Attack::Unread(get(path, BODY)));
    others_are_answered(&server, "bodies", &attacks).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_on_other_public_paths_do_not_lock_out_others() {
    let server = FakeServer::with(&[PLACES]).await;
    let link = large_file(&server).await;
    let paths = ["/", "/openapi.json", "/docs", "/metrics", "/nowhere", "/v1/runners", &link];
    // The body of this one is read before its token is known.
    let key = get("/v1/sessions/session", "content-type: application/json\r\ncontent-length: 1000\r\n");
    let requests = paths.map(|path| get(path, BODY)).into_iter().chain([key.replace("GET", "POST")]);
    let attacks: Vec<_> = requests.map(Attack::Unread).collect();
    others_are_answered(&server, "bodies", &attacks).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn key_of_coderunner_with_a_health_probe_is_no_wrong_token() {
    let server = FakeServer::start().await;
    for _ in 0..10 {
        let answer = ask(server.address, "/health", &format!("x-api-key: {TOKEN}\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    // Ten wrong tokens are free.
    assert!(server.shared.tokens.refused(server.address.ip()).is_zero(), "none was counted");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_of_an_engine_that_hangs_do_not_lock_out_others() {
    let server = FakeServer::with(&[PLACES]).await;
    server.engine.faults().hangs = true;
    let attacks = ["/readyz", "/health"].map(|path| Attack::Asks(get(path, "")));
    others_are_answered(&server, "probes", &attacks).await;
    server.engine.faults().hangs = false;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ready_says_what_the_last_probe_found_while_the_engine_hangs() {
    let server = FakeServer::start().await;
    let ready = async || ask(server.address, "/readyz", "").await;
    server.engine.faults().hangs = true;
    let first = ready().await;
    assert!(first.starts_with("HTTP/1.1 503") && first.contains("does not answer"), "it is not known yet: {first}");
    server.engine.faults().hangs = false;
    until("it is ready", async || ready().await.starts_with("HTTP/1.1 200")).await;
    server.engine.faults().hangs = true;
    let next = ready().await;
    assert!(next.starts_with("HTTP/1.1 200"), "the last probe was answered: {next}");
    until("it is not ready", async || ready().await.starts_with("HTTP/1.1 503")).await;
    server.engine.faults().hangs = false;
    server.stop().await;
}
