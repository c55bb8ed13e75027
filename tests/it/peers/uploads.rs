//! Uploads that are too long to be kept, to a container that one of the servers knows, and input of unknown length.

use std::convert::Infallible;

use futures_util::stream;
use reqwest::{Body, Method};
use serde_json::{Value, json};

use super::Pair;
use crate::support::{
    calls::{ask, request},
    server::TOKEN,
};

/// A body of unknown length.
fn streamed(pieces: Vec<Vec<u8>>) -> Body {
    Body::wrap_stream(stream::iter(pieces.into_iter().map(Ok::<_, Infallible>)))
}

#[tokio::test(flavor = "multi_thread")]
async fn long_uploads_reach_their_container_through_any_server() {
    let pair = Pair::start().await;
    let (_, sandbox) = ask(&pair.a, Method::POST, "/e2b/sandboxes", Some(json!({}))).await;
    let (_, container) = ask(&pair.a, Method::POST, "/openai/v1/containers", Some(json!({"name": "n"}))).await;
    let (sandbox, container) =
        (sandbox["sandboxID"].as_str().expect("an id"), container["id"].as_str().expect("an id"));
    for server in [&pair.b, &pair.a] {
        let call = |method: Method, path: &str| request(server, TOKEN, method, path);
        let write = call(Method::POST, "/e2b/files?path=long").header("e2b-sandbox-id", sandbox);
        let write =
            write.header("content-type", "application/octet-stream").body(streamed(vec![vec![b'x'; 5000]; 100]));
        let written = write.send().await.expect("an answer");
        assert_eq!(written.status(), 200, "{}", written.text().await.expect("text"));
        let read = call(Method::GET, "/e2b/files?path=long").header("e2b-sandbox-id", sandbox);
        assert_eq!(read.send().await.expect("an answer").bytes().await.expect("bytes").len(), 500_000);

        let form = "--cut\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\ntext\r\n--cut--\r\n";
        let write = call(Method::POST, &format!("/openai/v1/containers/{container}/files"));
        let write = write.header("content-type", "multipart/form-data; boundary=cut").body(streamed(vec![form.into()]));
        let written: Value = write.send().await.expect("an answer").json().await.expect("JSON");
        assert_eq!((&written["bytes"], &written["container_id"]), (&json!(4), &json!(container)), "{written}");

        let gone = call(Method::POST, "/e2b/files?path=long").header("e2b-sandbox-id", "none");
        let gone = gone.header("content-type", "application/octet-stream").body(streamed(vec![vec![b'x']]));
        assert_eq!(gone.send().await.expect("an answer").status(), 502, "no server has it");
    }
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn input_of_unknown_length_reaches_its_run_through_any_server() {
    let pair = Pair::start().await;
    let asked = json!({"language": "python", "code": "hang", "stdinOpen": true, "wait": 0});
    let (status, begun) = ask(&pair.a, Method::POST, "/v1/runs", Some(asked)).await;
    assert_eq!(status, 202, "{begun}");
    let path = format!("/v1/runs/{}", begun["runId"].as_str().expect("an id"));
    for server in [&pair.b, &pair.a] {
        let send =
            request(server, TOKEN, Method::POST, &format!("{path}/stdin")).body(streamed(vec![vec![b'x'; 10]; 2]));
        assert_eq!(send.send().await.expect("an answer").status(), 202);
    }
    assert_eq!(ask(&pair.a, Method::POST, &format!("{path}/cancel"), None).await.0, 200);
    pair.stop().await;
}
