//! Files on which a program holds a lease.

use reqwest::Method;
use serde_json::Value;

use super::{call, refused};
use crate::support::{FakeServer, holder::Holder};

#[tokio::test(flavor = "multi_thread")]
async fn a_leased_file_is_busy_over_v1_and_by_a_link_until_its_holder_ends() {
    const PATH: &str = "/v1/conversations/c/files/held";
    let server = FakeServer::start().await;
    let put = call(&server, Method::PUT, PATH).body("x").send().await.expect("an answer");
    let file: Value = put.json().await.expect("JSON");
    let link = file["url"].as_str().expect("a link");
    let holder = Holder::of(&server.root.join("c/files/held"));
    let read = call(&server, Method::GET, PATH).send().await.expect("an answer");
    assert_eq!(refused(read).await, (423, "file_busy".to_owned()));
    let linked = server.http.get(link).send().await.expect("an answer");
    assert_eq!(linked.status(), 423);
    let why: Value = linked.json().await.expect("JSON");
    assert_eq!(why["error"]["code"], "file_busy", "{why}");
    drop(holder);
    for request in [call(&server, Method::GET, PATH), server.http.get(link)] {
        let read = request.send().await.expect("an answer");
        assert_eq!((read.status().as_u16(), read.text().await.expect("text")), (200, "x".to_owned()));
    }
    server.stop().await;
}
