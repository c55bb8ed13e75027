//! Answers of one piece, which the server has buffered long before their clients have read them.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpSocket,
    time::{sleep, timeout},
};

use super::{Attack, ask, attackers, get, with_token};
use crate::support::{FakeServer, calls, until::PATIENCE};

const FILE_BYTES: u64 = 8 << 20;

const PATH: &str = "/jupyter/c/c/api/contents/f.bin?format=base64";

async fn with_file(settings: &[(&str, &str)], bytes: u64) -> FakeServer {
    let server = FakeServer::with(settings).await;
    server.run("c", "write a.txt x").await;
    let file = std::fs::File::create(server.root.join("c/files/f.bin")).expect("a file");
    file.set_len(bytes).expect("a length");
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_one_piece_that_is_read_slowly_is_not_idle() {
    let server = with_file(&[("SANDBOX_SERVER__IDLE_MS", "1500")], FILE_BYTES).await;
    let socket = TcpSocket::new_v4().expect("a socket");
    // Most of the answer stays at the server.
    socket.set_recv_buffer_size(64 << 10).expect("a small buffer");
    let mut stream = socket.connect(server.address).await.expect("connected");
    let request = get(PATH, &with_token());
    stream.write_all(request.as_bytes()).await.expect("sent");
    let (mut read, mut piece) = (0, vec![0; 64 << 10]);
    loop {
        match stream.read(&mut piece).await.expect("a piece") {
            // It is idle once the answer was read.
            0 => break,
            some => read += some as u64,
        }
        sleep(Duration::from_millis(30)).await;
    }
    assert!(read > FILE_BYTES / 3 * 4, "{read} bytes of a slow reader");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_one_piece_that_are_not_read_take_bounded_memory() {
    // Eleven and 71 of them fill the half of the memory that one owner has.
    for (bytes, readers) in [(FILE_BYTES, 14), (1_400_000, 90)] {
        let server = with_file(&[], bytes).await;
        let (_, other) = calls::create(&server, json!({"name": "t", "owner": "ann"})).await;
        let read = async |path: &str| ask(server.address, path, &with_token()).await;
        let held = attackers(readers, &[Attack::Unread(get(PATH, &with_token()))], server.address);
        let refused = async { while !read(PATH).await.contains("no room for another request") {} };
        timeout(PATIENCE, refused).await.expect("a refusal");
        assert!(read("/v1/runners").await.starts_with("HTTP/1.1 200"), "short answers are sent");
        let long = json!({"conversationId": "d", "language": "python", "code": "flood 200000"});
        let (status, _) = calls::call(&server, &other, Method::POST, "/v1/runs", long).await;
        assert_eq!(status, 200, "those of others too");
        drop(held);
        let reading = async { while !read(PATH).await.starts_with("HTTP/1.1 200") {} };
        timeout(PATIENCE, reading).await.expect("an answer");
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn program_whose_answer_has_no_room_is_not_to_be_run_again() {
    let server = with_file(&[("SANDBOX_LIMITS__OUTPUT_KEPT_BYTES", "32000000")], FILE_BYTES).await;
    let held = attackers(14, &[Attack::Unread(get(PATH, &with_token()))], server.address);
    let read = async || ask(server.address, PATH, &with_token()).await;
    let full = async { while !read().await.contains("no room for another request") {} };
    timeout(PATIENCE, full).await.expect("a refusal");
    // It needs more room than a file.
    let program = json!({"conversationId": "c", "language": "python", "code": "flood 14000000"});
    let run = async {
        loop {
            let (status, body) = calls::ask(&server, Method::POST, "/v1/runs", program.clone()).await;
            if status != 200 {
                return (status, body);
            }
        }
    };
    let (status, body) = timeout(PATIENCE, run).await.expect("a refusal");
    assert_eq!((status, &body["code"]), (413, &json!("too_large")), "{body}");
    assert!(body["detail"].as_str().is_some_and(|why| why.contains("do not send it again")), "{body}");
    drop(held);
    server.stop().await;
}
