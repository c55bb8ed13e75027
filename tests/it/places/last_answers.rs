//! Answers after which the server closes their connections.

use std::net::SocketAddr;

use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::{PLACES, get};
use crate::support::{FakeServer, calls::create, server::TOKEN, until::PATIENCE};

const CLOSE: &str = "\r\nconnection: close\r\n";

/// What the server answers on one connection until it closes it.
async fn answers(address: SocketAddr, requests: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let (mut reader, mut writer) = stream.split();
    let mut answers = Vec::new();
    let both = async { tokio::try_join!(writer.write_all(requests.as_bytes()), reader.read_to_end(&mut answers)) };
    timeout(PATIENCE, both).await.expect("the server closes it").expect("answers");
    String::from_utf8(answers).expect("text")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_of_a_thousand_answers_says_that_the_connection_closes() {
    let server = FakeServer::start().await;
    let answers = answers(server.address, &get("/healthz", "").repeat(1000)).await;
    let all: Vec<_> = answers.split("HTTP/1.1 200").skip(1).collect();
    let closing: Vec<_> = (1..).zip(&all).filter(|(_, answer)| answer.contains(CLOSE)).map(|(n, _)| n).collect();
    assert_eq!((all.len(), closing), (1000, vec![1000]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_close_their_connections_while_places_are_short() {
    let server = FakeServer::with(&[PLACES]).await;
    let [ann, bob] = ["ann", "bob"].map(|owner| json!({"name": "t", "owner": owner}));
    let tokens = [create(&server, ann).await.1, create(&server, bob).await.1, TOKEN.to_owned()];
    // Each in the share of its token, together more than three quarters of the places.
    let mut streams = Vec::new();
    for token in tokens.iter().cycle().take(16) {
        let events = server.http.get(format!("http://{}/mcp/events", server.address)).bearer_auth(token);
        let events = events.send().await.expect("an answer");
        assert_eq!(events.status(), 200);
        streams.push(events);
    }
    let answer = answers(server.address, &get("/healthz", "")).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(CLOSE), "{answer}");
    drop(streams);
    server.stop().await;
}
