//! Health probes, and requests with a token, while clients without one hold connections by bodies that they send slowly.

use super::{Attack, PLACES, get, large_file, others_are_answered};
use crate::support::FakeServer;

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
