//! Answers of one piece, which the server has buffered long before their clients have read them.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpSocket,
    time::sleep,
};

use super::{get, with_token};
use crate::support::FakeServer;

const FILE_BYTES: u64 = 8 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_one_piece_that_is_read_slowly_is_not_idle() {
    let server = FakeServer::with(&[("SANDBOX_SERVER__IDLE_MS", "300")]).await;
    server.run("c", "write a.txt x").await;
    let file = std::fs::File::create(server.root.join("c/files/f.bin")).expect("a file");
    file.set_len(FILE_BYTES).expect("a length");
    let socket = TcpSocket::new_v4().expect("a socket");
    // Most of the answer stays at the server.
    socket.set_recv_buffer_size(64 << 10).expect("a small buffer");
    let mut stream = socket.connect(server.address).await.expect("connected");
    let request = get("/jupyter/c/c/api/contents/f.bin?format=base64", &with_token());
    stream.write_all(request.as_bytes()).await.expect("sent");
    let (mut read, mut piece) = (0, vec![0; 64 << 10]);
    loop {
        match stream.read(&mut piece).await.expect("a piece") {
            // It is idle once the answer was read.
            0 => break,
            some => read += some as u64,
        }
        sleep(Duration::from_millis(10)).await;
    }
    assert!(read > FILE_BYTES / 3 * 4, "{read} bytes of a slow reader");
    server.stop().await;
}
